"""Gaussians over the weights."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.func import functional_call

import lapwing as lw
from lapwing.ground.errors import NumericalError, TooLargeError, UnsupportedError
from lapwing.linalg import BlockDiagonal, Dense, Diagonal
from lapwing.linalg.operators.eigenbasis import Eigenbasis
from lapwing.moments import FactorMoments, Moments, VarianceMoments
from lapwing.posteriors import WeightPosterior
from lapwing.posteriors.knowledge import KnowledgeScale
from lapwing.posteriors.weight_space import factor_error
from tests.posterior_cases import STRUCTURES, Problem, labels, limited, mlp, normal, problem, refused, seeded

over_weights = pytest.mark.parametrize(
    "structure", [name for name in STRUCTURES if name not in ("full-functions", "nystrom")]
)


def fit(
    name: str, structure: str, weights: lw.structures.weights.Selection | None = None
) -> tuple[Problem, WeightPosterior]:
    case = problem(name)
    recipe = lw.Laplace(case.likelihood, structure=STRUCTURES[structure], weights=weights or lw.All())
    posterior = case.fit(recipe)
    assert isinstance(posterior, WeightPosterior)
    return case, posterior


@over_weights
def test_draws_differ_from_the_trained_weights_by_a_root_of_the_covariance(structure: str) -> None:
    _, posterior = fit("images", structure)
    draws = posterior.sample(5, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(posterior.network.size, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = posterior.network.weights + (posterior.precision.operator.inverse_root() @ noise).mT
    assert torch.equal(draws, expected)
    assert draws.shape == (5, posterior.network.size)


@pytest.mark.parametrize("weights", [lw.All(), lw.LastLayer(), lw.Subnetwork(4, by="magnitude")])
def test_draws_become_networks(weights: lw.structures.weights.Selection) -> None:
    case, posterior = fit("images", "full-weights", weights)
    params = posterior.params(posterior.network.weights)
    trained = dict(case.model.named_parameters())
    assert all(torch.equal(value, trained[name]) for name, value in params.items())
    draw = posterior.params(posterior.sample()[0])
    model = case.model.eval()
    changed = functional_call(model, {**trained, **draw}, (case.new,))
    assert not torch.allclose(changed, model(case.new))


def test_draws_of_a_subnetwork_move_nothing_else() -> None:
    case, posterior = fit("categorical", "full-weights", lw.Subnetwork(4, by="magnitude"))
    draw = posterior.params(posterior.sample()[0])
    trained = dict(case.model.named_parameters())
    moved = sum(int((value != trained[name]).sum()) for name, value in draw.items())
    assert moved == 4


@pytest.mark.parametrize("name", ["gaussian", "categorical"])
def test_networks_with_drawn_weights_are_averaged(name: str, generator: torch.Generator) -> None:
    case, posterior = fit(name, "full-weights")
    state = generator.get_state()
    prediction = posterior.predict(case.new, linearised=False, samples=6, generator=generator)
    generator.set_state(state)
    model = case.model.eval()
    draws = [posterior.params(draw) for draw in posterior.sample(6, generator=generator)]
    outputs = torch.stack([functional_call(model, params, (case.new,)).detach() for params in draws])
    if name == "gaussian":
        torch.testing.assert_close(prediction.mean, outputs.mean(0))
        torch.testing.assert_close(prediction.outputs.variance, outputs.var(0))
    else:
        torch.testing.assert_close(prediction.probs, torch.softmax(outputs, -1).mean(0))


@pytest.mark.parametrize(
    ("structure", "kind"), [("full-weights", Dense), ("diagonal", Diagonal), ("kfac", BlockDiagonal)]
)
def test_precision_keeps_the_structure(structure: str, kind: type) -> None:
    _, posterior = fit("images", structure)
    assert type(posterior.precision.operator) is kind
    assert posterior.precision.partition == posterior.curvature.partition


def test_only_gaussian_likelihoods_know_their_mode() -> None:
    assert fit("gaussian", "kfac")[1].mode_shift is not None
    assert fit("categorical", "kfac")[1].mode_shift is None


@over_weights
def test_the_mode_of_a_linear_network_is_its_ridge_regression(structure: str) -> None:
    """One output and one position: every structure but the diagonal is exact, and that one only moves towards it."""
    x, y = normal(20, 3), normal(20, 1, seed=1)
    with torch.random.fork_rng():
        model = torch.nn.Linear(3, 1, bias=False).double()
    posterior = lw.Laplace(lw.Gaussian(2.0), prior=lw.Isotropic(0.7), structure=STRUCTURES[structure]).fit(
        model, (x, y)
    )
    assert isinstance(posterior, WeightPosterior) and posterior.mode_shift is not None
    mode = posterior.network.weights + posterior.mode_shift.step(posterior.prior_precisions, posterior.scale)
    ridge = torch.linalg.solve(2.0 * x.mT @ x + 0.7 * torch.eye(3), 2.0 * x.mT @ y).squeeze(-1)
    if structure == "diagonal":
        assert (mode - ridge).norm() < (posterior.network.weights - ridge).norm()
    else:
        torch.testing.assert_close(mode, ridge, rtol=1e-9, atol=1e-10)


def test_single_precision_gives_the_variances_of_double_under_a_weak_prior() -> None:
    """What no example says anything about has the prior's variance, 1e8, which rounding in a factor would cut short."""
    x, y, new, found = normal(10, 3), labels(10, classes=3), 3 * normal(3, 3, seed=2), []
    for dtype in (torch.float64, torch.float32):
        model = seeded(lambda: nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 3))).float().to(dtype)
        recipe = lw.Laplace(lw.Categorical(), structure=lw.KFAC(), prior=lw.Isotropic(1e-8))
        posterior = recipe.fit(model, (x.float().to(dtype), y))
        found.append(posterior.outputs_each(new.float().to(dtype), [posterior])[0].covariance)
        assert found[-1].dtype == dtype
    double, single = found
    assert double.max() > 1e8
    torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-4 * float(double.max()))


def test_a_curvature_whose_rounding_is_above_the_prior_warns_in_the_weight_view() -> None:
    model = mlp(4)
    with torch.no_grad():
        model[-1].bias[2:] = -50.0
    x, y = normal(10, 3), normal(10, 2, seed=1)
    recipe = lw.Laplace(lw.HeteroscedasticGaussian(), structure=lw.Full(view="weights"), prior=lw.Isotropic(1e10))
    posterior = recipe.fit(model, (x, y))
    posterior.outputs_each(x, [posterior])
    weaker = posterior.with_hyperparameters(lw.Isotropic(1.0), posterior.likelihood)
    with pytest.warns(lw.ConvergenceWarning, match=r"rounding of the curvature"):
        weaker.outputs_each(x, [weaker])


def test_a_curvature_that_is_rounding_alone_beside_the_prior_is_refused() -> None:
    model = mlp(4)
    with torch.no_grad():
        model[-1].bias[2:] = -50.0
    recipe = lw.Laplace(lw.HeteroscedasticGaussian(), structure=lw.Full(view="weights"))
    with refused(NumericalError, "would be wrong"):
        recipe.fit(model, (normal(10, 3), normal(10, 2, seed=1)))


def test_the_evidence_at_one_prior_takes_no_eigenvalues() -> None:
    case, posterior = fit("images", "full-weights")
    curvature = posterior.curvature.operator
    first = posterior.log_marginal()
    assert isinstance(curvature, Dense) and not curvature.has_eigenbasis
    posterior.with_hyperparameters(lw.Isotropic(9.0), case.likelihood).log_marginal()
    assert curvature.has_eigenbasis, "a second prior asks for all"
    by_eigenvalues = posterior.evidence.log_marginal(posterior.prior_precisions, posterior.scale)
    assert first == pytest.approx(float(by_eigenvalues), rel=1e-12)
    assert posterior.log_marginal() == first, "whoever asked since"


def test_the_evidence_at_a_prior_within_rounding_is_that_of_eigenvalues() -> None:
    case, posterior = fit("images", "full-weights")
    weak = posterior.with_hyperparameters(lw.Isotropic(1e-12), case.likelihood)
    weak.log_marginal()
    assert isinstance(weak.curvature.operator, Dense) and weak.curvature.operator.has_eigenbasis


@pytest.mark.parametrize("structure", STRUCTURES)
def test_evidence_that_is_not_finite_is_an_error(structure: str) -> None:
    x, y = normal(12, 3), 1e160 * normal(12, 1, seed=1)
    posterior = lw.Laplace(lw.Gaussian(), structure=STRUCTURES[structure]).fit(mlp(1), (x, y))
    with refused(NumericalError, "a finite log evidence"):
        posterior.log_marginal()
    for method in (lw.EvidenceGradient(), lw.MacKay()):
        with refused(NumericalError, "a finite log evidence"):
            lw.tune(posterior, method)


def test_squares_that_leave_the_range_of_single_precision_are_made_in_double() -> None:
    x, y = normal(12, 3).float(), 1e20 * normal(12, 1, seed=1).float()
    found = [
        lw.Laplace(lw.Gaussian(1e-40), structure=lw.KFAC()).fit(mlp(1).to(dtype), (x.to(dtype), y.to(dtype)))
        for dtype in (torch.float32, torch.float64)
    ]
    single, double = (posterior.log_marginal() for posterior in found)
    assert single == pytest.approx(double, rel=1e-4)


def test_a_product_of_factors_is_off_by_at_most_its_slack() -> None:
    """Both ways it is off by all of it: along the largest pair, of which each factor may have missed its error."""
    one = torch.eye(3).double()[:, :1]
    left, right = (
        Eigenbasis(torch.tensor([3.0]).double(), one, 0.5, 0.75),
        Eigenbasis(torch.tensor([2.0]), one, 0.25, 0.5),
    )
    sizes = [torch.kron(*[one @ one.T * float(it.values + it.error * most) for it in (left, right)]) for most in (0, 1)]
    more, less = factor_error(left, right)
    held = torch.kron(left.matrix, right.matrix.double())
    assert less == pytest.approx(float(torch.linalg.eigvalsh(sizes[1] - sizes[0]).max()))
    assert more == pytest.approx(0.5 * 2.5 + 0.25 * 3.75 + 0.5 * 0.25)
    assert float(torch.linalg.eigvalsh(held - sizes[0]).max()) <= more


def test_outputs_that_take_too_long_to_be_pulled_back_are_known_by_draws(caplog: pytest.LogCaptureFixture) -> None:
    """Where there are more outputs than draws, and their backward passes would take more than they may."""
    case, posterior = fit("categorical", "kfac")
    posterior = limited(posterior, multiplications=0.0)
    assert isinstance(posterior.outputs(case.new), Moments) and not caplog.text
    posterior = limited(posterior, draws=2)
    found = posterior.outputs(case.new)
    assert isinstance(found, FactorMoments) and found.factor.shape[-1] == 2
    assert "those of 2 draws, with a relative standard error of 1 of a variance" in caplog.text
    making = posterior.precision.operator.root_cost
    for few, draws in ((1, 1), (3, 2)):
        assert limited(posterior, few_draws=few).outputs(case.new).factor.shape[-1] == draws
    afford = limited(posterior, few_draws=1, jacobian=0, multiplications=2.0 * making)
    assert afford.outputs(case.new).factor.shape[-1] == 2
    with pytest.raises(TooLargeError, match="fewer inputs at a time"):
        limited(posterior, moved_bytes=8).outputs(case.new)


def test_link_of_variances_alone_keeps_no_draws_of_too_many_outputs() -> None:
    """The same variances and probabilities at both scales; what takes more is refused, or kept by another link."""
    case, posterior = fit("categorical", "kfac")
    posterior = limited(posterior, multiplications=0.0, draws=2).with_link("probit")
    posterior = replace(posterior, knowledge=KnowledgeScale(0.25, torch.zeros(1), held_out=False))
    kept = posterior.predict(case.new)
    posterior = limited(posterior, factor_bytes=0)
    found = posterior.predict(case.new)
    for alone, factor in ((found.logits, kept.logits), (found.known, kept.known)):
        assert isinstance(alone, VarianceMoments) and isinstance(factor, FactorMoments)
        torch.testing.assert_close(alone.variance, factor.variance)
    assert not torch.equal(found.known.variance, found.logits.variance)
    torch.testing.assert_close(found.probs, kept.probs)
    torch.testing.assert_close(posterior.outputs(case.new).variance, kept.logits.variance)
    with pytest.raises(UnsupportedError, match="fewer inputs at a time"):
        _ = found.epistemic
    assert isinstance(posterior.predict(case.new, "bridge").logits, FactorMoments)
    posterior = limited(posterior, moved_bytes=kept.logits.mean.nbytes)
    assert isinstance(posterior.outputs(case.new), VarianceMoments)
    with pytest.raises(TooLargeError, match="link='probit', which takes variances alone"):
        posterior.outputs(case.new, "bridge")


@pytest.mark.parametrize("structure", ["kfac", "full-weights"])
def test_outputs_whose_jacobian_is_too_large_are_known_by_draws(
    structure: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The same draws at every call, in blocks, of all inputs together; that they are draws is said with their error."""
    case, posterior = fit("categorical", structure)
    expected, together = posterior.outputs(case.new), posterior.outputs(case.new, joint=True)
    posterior = limited(posterior, jacobian=0, draws=2000, draw_bytes=700 * 4 * 8 * posterior.network.size)
    found, joint = posterior.outputs(case.new), posterior.outputs(case.new, joint=True)
    assert "those of 2000 draws" in caplog.text and "relative standard error of 0.032" in caplog.text
    assert torch.equal(found.mean, expected.mean)
    largest = float(expected.variance.max())
    assert not torch.equal(found.covariance, expected.covariance)
    torch.testing.assert_close(found.covariance, expected.covariance, rtol=0.12, atol=0.06 * largest)
    torch.testing.assert_close(joint.covariance, together.covariance, rtol=0.12, atol=0.06 * largest)
    torch.testing.assert_close(posterior.outputs(case.new[:2]).covariance, found.covariance[:2])
    head = case.fit(lw.Laplace(case.likelihood, weights=lw.LastLayer()))
    caplog.clear()
    limited(head, jacobian=0).outputs(case.new)
    assert not caplog.text
