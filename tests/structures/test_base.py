"""Fits under the g-prior: its scale, the evidence of every structure, and what cannot be had; fits to many outputs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.curvature.kfac import KroneckerSum
from lapwing.curvature.kinds import GGN, SampledGGN
from lapwing.ground.data.sources import Data
from lapwing.ground.errors import ConfigError, UnsupportedError
from lapwing.posteriors import FunctionPosterior, WeightPosterior
from lapwing.priors import GPrior
from lapwing.store import load, save
from lapwing.structures.base import multiplied
from tests.modules import Tied
from tests.posterior_cases import PROBLEMS, WEIGHTS, Linearised, problem, refused

EXACT = {
    "full-weights": lw.Full(view="weights"),
    "full-functions": lw.Full(view="functions"),
    "low-rank": lw.LowRank(99),
}


def scale_of(posterior: lw.Posterior) -> Tensor:
    prior = posterior.prior
    assert isinstance(prior, GPrior) and prior.scale is not None
    return prior.scale


def dense(posterior: lw.Posterior, name: str) -> tuple[Linearised, Tensor, Tensor]:
    """The linear model, its precision, and the prior's diagonal."""
    linear = Linearised(problem(name), posterior.network)
    prior = posterior.prior.diagonal(posterior.network.uncertain, linear.theta)
    return linear, linear.ggn + torch.diag(prior), prior


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_scale_is_the_diagonal_of_the_curvature(name: str) -> None:
    posterior = problem(name).fit(lw.Laplace(problem(name).likelihood, prior=GPrior(2.0), structure=lw.Diagonal()))
    diagonal = Linearised(problem(name), posterior.network).ggn.diagonal()
    seen = diagonal > 1e-6 * diagonal.max()
    torch.testing.assert_close(scale_of(posterior)[seen], diagonal[seen])
    assert (scale_of(posterior) > 0).all()


@pytest.mark.parametrize("weights", WEIGHTS)
def test_of_the_uncertain_weights_alone(weights: str) -> None:
    case = problem("categorical")
    recipe = lw.Laplace(case.likelihood, prior=GPrior(), structure=lw.Full(view="weights"), weights=WEIGHTS[weights])
    posterior = case.fit(recipe)
    diagonal = Linearised(case, posterior.network).ggn.diagonal()
    torch.testing.assert_close(scale_of(posterior), diagonal)


@pytest.mark.parametrize("name", ["categorical", "tokens", "gaussian-per-output"])
def test_the_scale_from_noise_comes_closer_with_more_of_it(name: str) -> None:
    case = problem(name)

    def off(samples: int) -> float:
        recipe = lw.Laplace(case.likelihood, prior=GPrior(samples=samples), structure=lw.Diagonal())
        posterior = case.fit(recipe, generator=torch.Generator().manual_seed(0))
        diagonal = Linearised(case, posterior.network).ggn.diagonal()
        seen = diagonal > 1e-6 * diagonal.max()
        return float((scale_of(posterior)[seen] / diagonal[seen] - 1).square().mean().sqrt())

    few, many = off(16), off(400)
    assert 0.02 < few < 0.8 and few / 20 < many < few / 3


def test_noise_is_unbiased_for_the_output_curvature(generator: torch.Generator) -> None:
    likelihood, f = lw.Categorical(), torch.randn(3, 4, dtype=torch.float64)
    blocks = list(SampledGGN(20_000).cotangents(likelihood, f, torch.zeros(3, dtype=torch.long), generator=generator))
    assert max(len(block) for block in blocks) == SampledGGN(20_000).width(4) == 64
    u = torch.cat(blocks)
    torch.testing.assert_close(torch.einsum("knc,kni->nci", u, u), likelihood.hessian(f), rtol=0, atol=0.01)
    assert GGN().width(4) == 4
    with pytest.raises(ConfigError, match="samples of at least 1"):
        SampledGGN(0)


@pytest.mark.parametrize("structure", EXACT)
@pytest.mark.parametrize("name", ["gaussian", "categorical", "images"])
def test_evidence_variance_and_dimension(name: str, structure: str) -> None:
    case = problem(name)
    posterior = case.fit(lw.Laplace(case.likelihood, prior=GPrior(0.3), structure=EXACT[structure]))
    for a in (0.3, 2.0):
        changed = posterior.with_hyperparameters(posterior.prior.with_precisions(torch.tensor([a])), case.likelihood)
        linear, precision, prior = dense(changed, name)
        expected = linear.log_marginal(precision, prior)
        assert math.isclose(float(changed.log_marginal()), expected, rel_tol=1e-8)
        gamma = len(prior) - float((prior * torch.linalg.inv(precision).diagonal()).sum())
        assert math.isclose(float(changed.effective_dimension()), gamma, rel_tol=1e-7)
        joint = changed.predict(case.new, joint=True)
        covariance = (joint.outputs if name == "gaussian" else joint.logits).covariance  # type: ignore[attr-defined]
        torch.testing.assert_close(covariance, linear.joint_covariance(precision), rtol=1e-7, atol=1e-9)


def test_of_a_diagonal() -> None:
    case = problem("categorical")
    posterior = case.fit(lw.Laplace(case.likelihood, prior=GPrior(0.3), structure=lw.Diagonal()))
    linear, precision, prior = dense(posterior, "categorical")
    diagonal = torch.diag(precision.diagonal())
    assert math.isclose(float(posterior.log_marginal()), linear.log_marginal(diagonal, prior), rel_tol=1e-9)
    assert math.isclose(float(posterior.effective_dimension()), len(prior) / 1.3, rel_tol=1e-9)


@pytest.mark.parametrize("structure", [*EXACT.values(), lw.Diagonal()], ids=repr)
@pytest.mark.parametrize("method", [lw.EvidenceGradient(), lw.MacKay()], ids=["gradient", "mackay"])
def test_tuning_finds_the_best_precision(structure: lw.Full, method: lw.MacKay) -> None:
    case = problem("categorical")
    tuned = lw.tune(case.fit(lw.Laplace(case.likelihood, prior=GPrior(0.3), structure=structure)), method)
    best = tuned.prior.precisions(tuned.network.uncertain)
    values = [
        float(tuned.with_hyperparameters(tuned.prior.with_precisions(c * best), case.likelihood).log_marginal())
        for c in (0.99, 1.0, 1.01)
    ]
    assert values[1] == max(values)


def test_tuning_at_the_mode() -> None:
    """At the mode of the linear model the evidence is that of Bayesian linear regression."""
    case = problem("gaussian")
    posterior = case.fit(lw.Laplace(case.likelihood, prior=GPrior(0.3), structure=lw.Full(view="weights")))
    assert isinstance(posterior, WeightPosterior) and posterior.mode_shift is not None
    linear, precision, prior = dense(posterior, "gaussian")
    j = linear.jacobian(case.x).flatten(0, -2)
    rest = (case.y - linear.outputs(case.x)).flatten()
    exact = torch.linalg.solve(precision, 2.5 * j.mT @ rest - prior * linear.theta)
    a = posterior.prior_precisions
    torch.testing.assert_close(posterior.mode_shift.step(a, posterior.scale), exact, rtol=1e-7, atol=1e-9)
    misfit, norms = posterior.mode_shift.fit(posterior.totals.misfit, a, posterior.scale)
    torch.testing.assert_close(misfit, 2.5 * (rest - j @ exact).square().sum(), rtol=1e-7, atol=1e-9)
    torch.testing.assert_close((a * norms).sum(), (prior * (linear.theta + exact).square()).sum())
    tuned = lw.tune(posterior, lw.EvidenceGradient(at="mode"))
    assert tuned.trace[-1].log_marginal > tuned.trace[0].log_marginal


def test_kronecker_factors_are_refused() -> None:
    case = problem("categorical")
    with refused(UnsupportedError, "for Kronecker factors"):
        case.fit(lw.Laplace(case.likelihood, prior=GPrior(), structure=lw.KFAC()))
    posterior = case.fit(lw.Laplace(case.likelihood, structure=lw.KFAC()))
    single = lw.DiagonalPrior(1.0 + torch.arange(posterior.network.size).double())
    posterior = posterior.with_hyperparameters(single, posterior.likelihood)
    for ask in (lambda: posterior.log_marginal(), lambda: posterior.predict(case.new), lambda: lw.tune(posterior)):
        with refused(UnsupportedError, "one value for all entries"):
            ask()


def test_another_scale_is_another_prior() -> None:
    """What was computed for one scale is not used for another."""
    case = problem("categorical")
    weights, functions = (
        case.fit(lw.Laplace(case.likelihood, prior=GPrior(0.3), structure=lw.Full(view=view)))
        for view in ("weights", "functions")
    )
    before = weights.log_marginal()
    other = GPrior(0.3).scaled_by(torch.ones(weights.network.size), weights.network.uncertain)
    plain = case.fit(lw.Laplace(case.likelihood, prior=lw.Isotropic(0.3), structure=lw.Full(view="weights")))
    changed = weights.with_hyperparameters(other, case.likelihood)
    assert math.isclose(float(changed.log_marginal()), float(plain.log_marginal()), rel_tol=1e-9)
    assert float(changed.log_marginal()) != before
    assert isinstance(functions, FunctionPosterior)
    with refused(UnsupportedError, "in its precisions alone"):
        functions.with_hyperparameters(other, case.likelihood)


@pytest.mark.parametrize("structure", ["full-weights", "full-functions"])
def test_save_and_load(structure: str, tmp_path: Path) -> None:
    case = problem("images")
    posterior = case.fit(lw.Laplace(case.likelihood, prior=GPrior(0.3), structure=EXACT[structure]))
    save(posterior, tmp_path / "a.safetensors")
    again = load(tmp_path / "a.safetensors", case.model)
    assert again.prior == posterior.prior and again.log_marginal() == posterior.log_marginal()


def test_products_alone() -> None:
    case = problem("categorical")
    recipe = lw.Laplace(case.likelihood, prior=GPrior(0.3), structure=lw.MatrixFree(lw.solvers.CG(rtol=1e-9)))
    posterior = case.fit(recipe)
    linear, precision, _ = dense(posterior, "categorical")
    found = posterior.predict(case.new, joint=True).logits.covariance  # type: ignore[attr-defined]
    torch.testing.assert_close(found, linear.joint_covariance(precision), rtol=1e-6, atol=1e-8)


def test_noise_has_the_second_moment_of_the_curvature_however_few_its_draws() -> None:
    likelihood, outputs = lw.Categorical(), torch.tensor([[0.3, -0.5, 1.0]]).double()
    targets, generator = torch.tensor([1]), torch.Generator().manual_seed(0)
    drawn = [
        torch.cat(list(SampledGGN(2).cotangents(likelihood, outputs, targets, generator=generator)))[:, 0]
        for _ in range(4000)
    ]
    found = torch.stack([u.mT @ u for u in drawn]).mean(0)
    torch.testing.assert_close(found, likelihood.hessian(outputs, targets)[0], rtol=0.08, atol=0.01)


def test_many_outputs_have_draws_where_all_of_them_would_take_too_much(generator: torch.Generator) -> None:
    """Variances by 16 draws an example are within a tenth of the exact ones of 150 outputs, by all backward passes."""
    x = torch.randn(120, 5, generator=generator)
    y = torch.randint(150, (120,), generator=generator)
    model = nn.Sequential(nn.Linear(5, 30), nn.Tanh(), nn.Linear(30, 150))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    recipe = lw.Laplace(lw.Categorical(), structure=lw.KFAC())
    data = Data((x, y), like=x)
    task = recipe.task(model, data)
    assert task.affordable() is task
    assert task.affordable(most=multiplied(task.model, 150)) is task
    assert task.affordable(most=multiplied(task.model, 64)).curvature == SampledGGN(64)
    few = task.affordable(most=0.0)
    assert few.curvature == SampledGGN(16)
    exact = lw.Laplace(lw.Categorical(), structure=lw.KFAC(), curvature=GGN(exact=True)).task(model, data)
    assert exact.affordable(most=0.0) is exact
    variance = recipe.fit(model, (x, y)).outputs(x[:20]).variance
    total = KroneckerSum(few.model.network)
    torch.testing.assert_close(few.summed(total).outputs(x[:20]).variance, variance, rtol=0.1, atol=0.0)


def test_matrices_of_many_outputs_are_inverted_from_enough_draws(generator: torch.Generator) -> None:
    """The inverse of a sum of m draws in c dimensions is m / (m - c) times too large."""
    x = torch.randn(50, 5, generator=generator)
    y = torch.randn(50, 200, generator=generator)
    model = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 200))
    recipe = lw.Laplace(lw.Gaussian(), structure=lw.KFAC(), prior=lw.Isotropic(0.01))
    task = recipe.task(model, Data((x, y), like=x))
    most = multiplied(task.model, 64)
    assert task.affordable(most=most / 2).curvature == SampledGGN(16)
    assert task.affordable(most=most, inverted=True).curvature == SampledGGN(64)
    assert task.affordable(most=multiplied(task.model, 40), inverted=True).curvature == SampledGGN(40)
    with pytest.warns(lw.DataWarning, match=r"800 draws for a Kronecker factor of 200 outputs: .* 1.3 times too large"):
        few = task.affordable(most=most / 2, inverted=True)
    exact = task.summed(KroneckerSum(task.model.network)).outputs(x[:9]).variance
    by_few = few.summed(KroneckerSum(task.model.network)).outputs(x[:9]).variance
    enough = task.affordable(most=multiplied(task.model, 40), inverted=True)
    by_enough = enough.summed(KroneckerSum(task.model.network)).outputs(x[:9]).variance
    assert 1.2 < float((by_few / exact).mean()) < 1.35
    assert 1.02 < float((by_enough / exact).mean()) < 1.12


def test_a_head_that_is_an_embedding_has_no_matrix_of_outputs_to_invert(generator: torch.Generator) -> None:
    model = Tied()
    model.embed = nn.Embedding(200, 3)
    model.decode = nn.Linear(3, 200, bias=False)
    tokens = torch.randint(200, (4, 3), generator=generator)
    recipe = lw.Laplace(lw.Categorical(event_dim=1), structure=lw.KFAC())
    apart = recipe.task(model, Data((tokens, tokens), like=torch.ones(1)))
    with pytest.warns(lw.DataWarning, match="for a Kronecker factor of 200 outputs"):
        apart.affordable(most=0.0, inverted=True)
    model.decode.weight = model.embed.weight
    tied = recipe.task(model, Data((tokens, tokens), like=torch.ones(1)))
    assert tied.affordable(most=0.0, inverted=True).curvature == SampledGGN(16)
