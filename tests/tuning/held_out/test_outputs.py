"""Held-out outputs at any prior precision, from those on a grid; which examples are looked at."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import lapwing as lw
from lapwing.ground.data.sources import Batch
from lapwing.tuning.held_out.examples import evenly
from lapwing.tuning.held_out.interpolation import weights_at
from lapwing.tuning.held_out.outputs import LIMITS, Contracted, HeldOut, LookLimits, Solved, held_out_outputs
from lapwing.tuning.held_out.search import Point
from tests.posterior_cases import STRUCTURES, labels, mlp, normal, problem


def test_interpolation_is_as_exact_as_said_for_every_eigenvalue() -> None:
    """Relative to a term 1 / (λ + t); a covariance is a sum of positive ones, whose error is no larger."""
    grid = np.linspace(-6, 6, 31) * math.log(10)
    spectrum = np.concatenate([[0.0], np.logspace(-12, 12, 500)])
    gap = grid[1] - grid[0]
    for start, bound in ((0, 3e-3), (2, 1e-3), (3, 3e-4), (7, 3e-4), (15, 3e-4), (26, 3e-4), (29, 3e-3)):
        for part in (0.25, 0.5, 0.75):
            point = grid[start] + part * gap
            found = (weights_at(point, grid) / (spectrum[:, None] + np.exp(grid))).sum(1)
            assert np.abs(found * (spectrum + np.exp(point)) - 1).max() < bound
    assert weights_at(grid[3], grid).tolist() == np.eye(31)[3].tolist()


@pytest.mark.parametrize("structure", STRUCTURES)
def test_outputs_between_the_grid_are_those_of_the_posterior_there(structure: str) -> None:
    case = problem("categorical")
    posterior = case.fit(lw.Laplace(case.likelihood, structure=STRUCTURES[structure], prior=lw.Layerwise((0.2, 5.0))))
    data = held_out_outputs(posterior, [Batch(case.new, case.y[:4]), Batch(case.x, case.y)], (1e-6, 1e6))
    assert isinstance(data, Contracted) and len(data.log_factors) == 31 and data.grid == data.log_factors[::3]
    for log_factor in (data.grid[4], 0.123, -5.1, 8.0):
        there = data.posterior_at(log_factor)
        for found, inputs in zip(data.moments(log_factor), (case.new, case.x), strict=True):
            expected = there.predict(inputs).logits
            assert torch.equal(found.mean, expected.mean)
            torch.testing.assert_close(found.variance, expected.variance, rtol=3e-4, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_in_half_precision_they_are_as_exact_as_it_is_also_where_weak_priors_overflow(dtype: torch.dtype) -> None:
    x, y = normal(9, 3).to(dtype), labels(9, classes=3)
    posterior = lw.Laplace(lw.Categorical(), structure=lw.KFAC()).fit(mlp(3).to(dtype), (x, y))
    data = held_out_outputs(posterior, [Batch(x, y)], (1e-6, 1e6))
    assert isinstance(data, Contracted)
    ((_, spreads),) = data.parts
    assert spreads[-1].isfinite().all() == (dtype == torch.bfloat16)
    for log_factor in (data.grid[2], 3.3, 5.1, 9.1):
        weights = torch.from_numpy(weights_at(log_factor, np.array(data.log_factors)))
        near = weights.nonzero()[:, 0]
        expected = torch.einsum("m,m...->...", weights[near], spreads[near].double())
        (found,) = data.moments(log_factor)
        torch.testing.assert_close(found.compact_covariance, expected.to(dtype), atol=0.0, rtol=torch.finfo(dtype).eps)


def test_a_posterior_known_by_solves_is_solved_from_where_it_was() -> None:
    case = problem("categorical")
    posterior = case.fit(lw.Laplace(case.likelihood, structure=lw.Sampled(5, lw.solvers.CG(rtol=1e-10))))
    data = held_out_outputs(posterior, [Batch(case.new, case.y[:4])], (1e-2, 1e2))
    assert isinstance(data, Solved)
    assert data.grid == pytest.approx([math.log(10) * k for k in (2, 1, 0, -1, -2)])
    (found,) = data.moments(1.0)
    direct = posterior.with_hyperparameters(lw.Isotropic(math.e), case.likelihood)
    torch.testing.assert_close(found.covariance, direct.predict(case.new).logits.covariance, rtol=1e-8, atol=1e-12)
    assert data.posterior_at(1.0).found is not None, "what was solved is not solved again"


def test_examples_are_spread_over_all_batches() -> None:
    y = torch.arange(23)
    batches = [Batch(y[:10, None].float(), y[:10]), Batch(y[10:, None].float(), y[10:])]
    assert [batch.targets.tolist() for batch in evenly(batches, 5)] == [[0, 6], [11, 16, 22]]
    assert [len(batch) for batch in evenly(batches, 23)] == [10, 13]


def test_few_examples_where_covariances_are_large() -> None:
    """Of events by their positions; what does not fit in memory is not kept, and a pass over some factors at a time."""
    case = problem("pixels")
    posterior = case.fit(lw.Laplace(case.likelihood, structure=lw.KFAC()))
    batches = [Batch(case.x, case.y)]

    def looked_at(limits: LookLimits) -> HeldOut[lw.Posterior]:
        return held_out_outputs(posterior, batches, (1e-2, 1e2), limits=limits)

    assert looked_at(LookLimits(positions=12)).examples == 2
    assert looked_at(LookLimits(covariances=1, least=18)).examples == 3
    whole, few = (looked_at(limits) for limits in (LIMITS, LookLimits(variances=8 * 3 * posterior.network.size)))
    torch.testing.assert_close(few.moments(0.1)[0].covariance, whole.moments(0.1)[0].covariance)


@pytest.mark.parametrize("name", ["pixels", "tokens"])
def test_some_positions_of_many_are_looked_at(name: str) -> None:
    """The loss is that of those positions, by the predictions of all."""
    case = problem(name)
    posterior = case.fit(lw.Laplace(case.likelihood, structure=lw.KFAC()))
    data = held_out_outputs(posterior, [Batch(case.x, case.y)], (1e-2, 1e2), limits=LookLimits(places=2))
    assert data.places is not None and len(data.places) == 2
    (found,), (looked,) = data.moments(0.0), data.batches
    assert torch.equal(looked.targets, case.y.flatten(1)[:, data.places])
    expected = posterior.outputs(case.x)
    torch.testing.assert_close(found.mean, expected.mean.flatten(1, -2)[:, data.places])
    torch.testing.assert_close(found.variance, expected.variance.flatten(1, -2)[:, data.places], rtol=1e-2, atol=1e-9)
    assert math.isfinite(Point(data, data.likelihood, 0.0, [found]).trial("probit").loss)
