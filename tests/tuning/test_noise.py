"""Several outputs, each with a noise of its own: where the tuners go, against dense evidence and single outputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

import lapwing as lw
from lapwing.ground.data.sources import Data
from lapwing.ground.errors import ConvergenceWarning, UnsupportedError
from lapwing.tuning.held_out.validation import NEAR_ENOUGH
from lapwing.tuning.noise import gathered, output_residuals, refitted_in_proportion
from tests.posterior_cases import normal, refused, seeded

NOISES = torch.tensor([0.1, 0.5, 1.0], dtype=torch.float64)
"""Standard deviations of the noise of three outputs."""

EXAMPLES, INPUTS = 60, 4

FULL = lw.Full(view="weights")


@cache
def regression() -> tuple[nn.Module, Tensor, Tensor]:
    """A linear network of three outputs near its mode, and data of three noises."""
    x = normal(EXAMPLES, INPUTS, seed=1)
    y = x @ normal(INPUTS, 3, seed=2) + NOISES * normal(EXAMPLES, 3, seed=3)
    model = seeded(lambda: nn.Linear(INPUTS, 3, bias=False))
    with torch.no_grad():
        model.weight.copy_(torch.linalg.lstsq(x, y).solution.mT)
    return model, x, y


def fit(structure: Any = FULL, likelihood: lw.Gaussian | None = None, **options: Any) -> lw.Posterior:
    model, x, y = regression()
    recipe = lw.Laplace(lw.Gaussian() if likelihood is None else likelihood, structure=structure, **options)
    return recipe.fit(model, list(zip(x.split(25), y.split(25), strict=True)))


def marginal(point: Tensor) -> Tensor:
    """``log p(y)`` of the linear model, whose outputs are independent given the prior, at log α and log ρ_k."""
    _, x, y = regression()
    alpha, *noises = point.exp()
    kernel, eye = x @ x.mT / alpha, torch.eye(len(x), dtype=x.dtype)
    normals = [MultivariateNormal(torch.zeros(len(x)).double(), kernel + eye / noise) for noise in noises]
    return torch.stack([each.log_prob(y[:, k]) for k, each in enumerate(normals)]).sum()


def at_weights(point: Tensor) -> Tensor:
    """The evidence at the trained weights up to a constant, from dense matrices."""
    model, x, y = regression()
    alpha, *noises = point.exp()
    theta, total = model.weight.detach(), torch.zeros((), dtype=torch.float64)
    for k, noise in enumerate(noises):
        squares = (y[:, k] - x @ theta[k]).square().sum()
        precision = noise * x.mT @ x + alpha * torch.eye(INPUTS, dtype=x.dtype)
        fitted = 0.5 * len(x) * noise.log() - 0.5 * noise * squares
        total += fitted + 0.5 * INPUTS * alpha.log() - 0.5 * alpha * theta[k].square().sum() - 0.5 * precision.logdet()
    return total


@cache
def best(evidence: Callable[[Tensor], Tensor]) -> Tensor:
    """Log precisions of largest evidence."""

    def negative(values: np.ndarray) -> tuple[float, np.ndarray]:
        point = torch.tensor(values, requires_grad=True)
        value = -evidence(point)
        return value.item(), torch.autograd.grad(value, point)[0].numpy()

    found = minimize(negative, np.zeros(4), jac=True, method="BFGS", options={"gtol": 1e-8})
    return torch.as_tensor(found.x)


def point_of(posterior: lw.Posterior) -> Tensor:
    """Its log precisions: the prior's, then the noise of each output."""
    likelihood = posterior.likelihood
    assert isinstance(likelihood, lw.Gaussian) and isinstance(likelihood.precision, tuple)
    return torch.cat([posterior.prior_precisions, torch.tensor(likelihood.precision, dtype=torch.float64)]).log()


@pytest.mark.parametrize("likelihood", [lw.Gaussian(), lw.Gaussian((1.0, 1.0, 1.0)), lw.Gaussian((50.0, 1.0, 0.1))])
def test_where_it_starts_makes_no_difference(likelihood: lw.Gaussian) -> None:
    tuned = lw.tune(fit(likelihood=likelihood), lw.EvidenceGradient())
    torch.testing.assert_close(point_of(tuned), best(at_weights), rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("method", "evidence"),
    [
        (lw.MacKay(), at_weights),
        (lw.EvidenceGradient(at="mode"), marginal),
        (lw.MacKay(at="mode"), marginal),
        (lw.EM(tolerance=1e-3), marginal),
    ],
    ids=["MacKay", "EvidenceGradient at the mode", "MacKay at the mode", "EM"],
)
def test_ends_at_the_maximum_of_the_dense_evidence(method: Any, evidence: Callable[[Tensor], Tensor]) -> None:
    tuned = lw.tune(fit(), method)
    torch.testing.assert_close(point_of(tuned), best(evidence), rtol=0, atol=2e-3)


@pytest.mark.parametrize("structure", [lw.Full(view="functions"), lw.KFAC(), lw.LowRank(12)], ids=str)
def test_structures_that_are_exact_here_end_there_too(structure: Any) -> None:
    tuned = lw.tune(fit(structure), lw.EvidenceGradient())
    torch.testing.assert_close(point_of(tuned), best(at_weights), rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    "structure", [lw.MatrixFree(lw.solvers.CG()), lw.Sampled(64, lw.solvers.CG())], ids=["solves", "draws"]
)
def test_draws_end_near_it(structure: Any) -> None:
    tuned = lw.tune(fit(structure), lw.EM(samples=64, tolerance=0.1))
    torch.testing.assert_close(point_of(tuned), best(marginal), rtol=0, atol=0.1)


def test_residuals_alone_are_the_noise_of_each_output() -> None:
    model, x, y = regression()
    tuned = lw.tune(fit(lw.Diagonal()))
    residuals = (y - model(x).detach()).square().mean(0)
    torch.testing.assert_close(point_of(tuned)[1:], -residuals.log(), rtol=1e-10, atol=1e-10)


def test_held_out_residuals_are_as_large_as_predicted_of_each_output() -> None:
    x = normal(80, INPUTS, seed=7)
    y = x @ normal(INPUTS, 3, seed=2) + NOISES * normal(80, 3, seed=8)
    tuned = lw.tune(fit(lw.KFAC()), (x, y))
    predicted = tuned.predict(x)
    whole = ((y - predicted.mean) / predicted.std).square().mean(0)
    torch.testing.assert_close(whole, torch.ones(3, dtype=torch.float64), rtol=NEAR_ENOUGH, atol=0)


@pytest.mark.parametrize("method", [None, lw.EM(), lw.MacKay(), lw.ELBO()], ids=str)
def test_intervals_cover_what_they_say_of_each_output(method: Any) -> None:
    x = normal(4000, INPUTS, seed=9)
    y = x @ normal(INPUTS, 3, seed=2) + NOISES * normal(4000, 3, seed=10)
    predicted = lw.tune(fit(), method).predict(x)
    covered = ((y - predicted.mean).abs() < 1.96 * predicted.std).double().mean(0)
    assert bool(((covered > 0.88) & (covered < 0.985)).all()), covered


@pytest.mark.parametrize("method", [lw.EvidenceGradient(noise=False), lw.MacKay(noise=False), lw.EM(noise=False)])
def test_noise_is_left_alone_on_request(method: Any) -> None:
    assert lw.tune(fit(), method).likelihood == lw.Gaussian()


def test_a_shared_noise_changes_by_one_factor_and_reads_no_data() -> None:
    posterior = fit(likelihood=lw.Gaussian((1.0, 2.0, 4.0), shared=True))
    noise = lw.tune(posterior, lw.EvidenceGradient()).likelihood.noise_precision
    assert isinstance(noise, tuple)
    assert noise[1] / noise[0] == pytest.approx(2.0) and noise[2] / noise[0] == pytest.approx(4.0)


def test_the_curvature_is_that_of_a_fit_with_the_noise_it_ends_with() -> None:
    tuned = lw.tune(fit(prior=lw.Layerwise()), lw.EvidenceGradient())
    again = fit(likelihood=tuned.likelihood, prior=tuned.prior)
    x = normal(5, INPUTS, seed=11)
    torch.testing.assert_close(tuned.predict(x).std, again.predict(x).std)
    assert tuned.log_marginal() == pytest.approx(again.log_marginal())
    assert tuned.trace[-1].noise_precision == pytest.approx(tuned.likelihood.noise_precision)


def test_a_posterior_from_a_file_needs_its_data_and_then_ends_where_the_first_did(tmp_path: Path) -> None:
    model, x, y = regression()
    posterior = fit(lw.KFAC())
    lw.save(posterior, tmp_path / "posterior")
    with refused(UnsupportedError, "to choose a noise for each output"):
        lw.tune(lw.load(tmp_path / "posterior", model))
    loaded = lw.load(tmp_path / "posterior", model, (x, y))
    tuned = lw.tune(loaded, lw.MacKay())
    torch.testing.assert_close(point_of(tuned), point_of(lw.tune(posterior, lw.MacKay())))
    lw.save(tuned, tmp_path / "tuned")
    assert lw.load(tmp_path / "tuned", model).likelihood == tuned.likelihood


def test_an_output_that_is_fitted_exactly_is_named() -> None:
    model, x, y = regression()
    y = torch.cat([y[:, :2], model(x).detach()[:, 2:]], 1)
    posterior = lw.Laplace(lw.Gaussian(), structure=FULL).fit(model, (x, y))
    with pytest.warns(ConvergenceWarning, match=r"noise precision of outputs \[2\]"):
        lw.tune(posterior, lw.EvidenceGradient(noise="residuals"))


def test_dimensions_of_the_outputs_add_up_to_that_of_the_posterior() -> None:
    posterior = fit(likelihood=lw.Gaussian((1.0, 2.0, 4.0), weight=3.0))
    sums = output_residuals(posterior)
    noises = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    assert float((noises * sums.variances).sum()) == pytest.approx(posterior.effective_dimension())
    assert sums.observations == 3.0 * EXAMPLES


def test_batches_of_tensors_are_put_together_and_others_are_not() -> None:
    posterior = fit()
    assert [len(batch) for batch in gathered(posterior.training.data, 50)] == [50, 10]
    ragged = [(normal(2, 3, 4), normal(2, 3)), (normal(2, 5, 4), normal(2, 5)), (normal(3, 5, 4), normal(3, 5))]
    assert [len(batch) for batch in gathered(Data(ragged), 50)] == [2, 5]


def test_draws_under_a_prior_of_several_precisions_give_each_output_its_share() -> None:
    x, y = normal(12, INPUTS, seed=1), normal(12, 3, seed=2)
    prior = lw.DiagonalPrior(torch.tensor([100.0, 1.0, 0.01]).double().repeat_interleave(INPUTS))
    model = seeded(lambda: nn.Linear(INPUTS, 3, bias=False))
    drawn, exact = (
        lw.EM(samples=256).noises(lw.Laplace(lw.Gaussian(), structure=structure, prior=prior).fit(model, (x, y)))
        for structure in (lw.MatrixFree(lw.solvers.CG()), FULL)
    )
    torch.testing.assert_close(drawn, exact, rtol=0.1, atol=0.0)


@pytest.mark.parametrize(("weights", "factor"), [(lw.LastLayer(), 6.0), (lw.All(), 1.0)], ids=["last layer", "all"])
def test_another_noise_takes_the_prior_of_a_last_layer_with_it(weights: Any, factor: float) -> None:
    """By the geometric mean of the noise precisions; weights below the last have no units of the targets."""
    model = seeded(lambda: nn.Sequential(nn.Linear(INPUTS, 4), nn.Tanh(), nn.Linear(4, 2)))
    data = normal(20, INPUTS), normal(20, 2, seed=1)
    posterior = lw.Laplace(lw.Gaussian(), prior=lw.Isotropic(3.0), weights=weights).fit(model, data)
    again = refitted_in_proportion(posterior, torch.tensor([4.0, 9.0], dtype=torch.float64))
    assert again.prior_precisions.tolist() == pytest.approx([3.0 * factor])
    assert isinstance(again.likelihood, lw.Gaussian)
    assert torch.as_tensor(again.likelihood.precision).tolist() == [4.0, 9.0]
