"""The structure that draws once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import lapwing as lw
from lapwing.ground.errors import DataError, TooLargeError, UnsupportedError
from tests.posterior_cases import mlp, normal, problem, refused
from tests.structures.cases import fit, wide


def test_defaults() -> None:
    assert lw.Sampled() == lw.Sampled(64, lw.solvers.CG(preconditioner=lw.LowRank(100)), seed=0)


def test_other_curvatures_than_the_ggn_are_refused() -> None:
    case = problem("categorical")
    with refused(UnsupportedError, "Gauss-Newton"):
        case.fit(lw.Laplace(case.likelihood, structure=lw.Sampled(2), curvature=lw.MCFisher()))


def test_a_g_prior_learns_its_scale() -> None:
    case = problem("images")
    prior = case.fit(lw.Laplace(case.likelihood, prior=lw.GPrior(2.0), structure=lw.Sampled(2))).prior
    assert isinstance(prior, lw.GPrior) and prior.scale is not None and prior.precision == 2.0


def test_the_noise_does_not_depend_on_the_prior() -> None:
    case = problem("images")
    found = [
        case.fit(lw.Laplace(case.likelihood, prior=lw.Isotropic(a), structure=lw.Sampled(3, seed=4)))
        for a in (0.1, 10.0)
    ]
    first, second = (
        posterior.perturbation for posterior in found if isinstance(posterior, lw.posteriors.SampledPosterior)
    )
    assert torch.equal(first.data, second.data) and torch.equal(first.prior, second.prior)


class Growing:
    """A loader with other inputs in every pass."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y, self.passes = x, y, 0

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        self.passes += 1
        yield self.x * self.passes, self.y


def test_data_that_change_between_passes_are_refused() -> None:
    x, y = normal(12, 3), (normal(12, seed=1) > 0).long()
    recipe = lw.Laplace(lw.Categorical(), structure=lw.Sampled(2, lw.solvers.CG()))
    with refused(DataError, "same data in every pass"):
        recipe.fit(mlp(), Growing(x, y))
    shuffled = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)
    probs = recipe.fit(mlp(), shuffled).predict(x).probs
    assert bool(probs.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_have_the_dtype_of_the_weights(dtype: torch.dtype) -> None:
    case = problem("gaussian")
    model = mlp().to(dtype)
    posterior = lw.Laplace(case.likelihood, structure=lw.Sampled(2, lw.solvers.CG())).fit(model, (case.x, case.y))
    assert isinstance(posterior, lw.posteriors.SampledPosterior)
    assert posterior.draws.dtype == posterior.sample().dtype == dtype
    assert posterior.output_squares.dtype == torch.float64


def test_the_memory_of_draws_is_said_before(caplog: pytest.LogCaptureFixture) -> None:
    fit(wide(5), lw.Sampled(3))
    assert "draws" not in caplog.text
    with refused(TooLargeError, "1 bytes"):
        fit(wide(5), lw.Sampled(10**8, max_bytes=1))
    assert "100000000 draws of 10 weights will take about" in caplog.text
