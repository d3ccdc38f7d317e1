"""The mode under Student-t noise is the lowest one that scipy finds, also where steps of Newton lead elsewhere."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from lapwing.gp.robust_mode import RobustLoss, descended, robust_mode
from lapwing.ground.errors import NumericalError
from lapwing.ground.progress import Bar
from lapwing.likelihoods import StudentT
from tests.posterior_cases import normal, refused

N = 12


def loss(df: float = 2.0, scale: float = 0.3, *, weight: float = 1.0, far: float = 8.0, seed: int = 0) -> RobustLoss:
    """Of a smooth function, a few of whose targets are far off."""
    x = torch.linspace(-2, 2, N, dtype=torch.float64)
    kernel = 1.5 * torch.exp(-0.5 * (x[:, None] - x).square()) + 1e-9 * torch.eye(N).double()
    y = x.sin() + scale * normal(N, seed=seed)
    y[[2, 3, 7]] += far * normal(3, seed=seed + 50)
    return RobustLoss.of(torch.linalg.cholesky(kernel), y, StudentT(df, scale, weight=weight))


def dense(of: RobustLoss, u: np.ndarray) -> tuple[float, np.ndarray]:
    """The loss and its gradient, by torch's own density."""
    at = torch.tensor(u, requires_grad=True)
    noise = torch.distributions.StudentT(of.likelihood.df, of.root @ at, of.likelihood.scale)
    value = -of.likelihood.weight * noise.log_prob(of.targets).sum() + 0.5 * at.square().sum()
    value.backward()
    assert at.grad is not None
    return float(value.detach()), at.grad.numpy()


def minima_of(of: RobustLoss) -> list[Any]:
    """Those that scipy finds from a dozen random starts."""
    starts = normal(12, N, seed=9).numpy()
    return [minimize(lambda u: dense(of, u), 2 * start, jac=True, method="BFGS") for start in starts]


@pytest.mark.parametrize(
    ("df", "scale", "weight"), [(0.5, 0.1, 1.0), (2.0, 0.3, 1.0), (2.0, 0.3, 2.5), (4.0, 1.0, 0.5), (1e6, 0.3, 1.0)]
)
def test_it_is_the_lowest_that_many_starts_find(df: float, scale: float, weight: float) -> None:
    of = loss(df, scale, weight=weight)
    mode = robust_mode(of, [], rtol=1e-9)
    value, gradient = dense(of, mode.weights.numpy())
    assert mode.stopped == "converged" and mode.gradient <= 1e-9
    assert value <= min(found.fun for found in minima_of(of)) + 1e-6 * (1 + abs(value))
    assert float(np.abs(gradient).max()) < 1e-6
    assert value == pytest.approx(mode.nll + 0.5 * float(mode.weights.square().sum()), rel=1e-10)
    assert bool((torch.linalg.eigvalsh(of.at(mode.weights).hessian) > 0).all())


def test_the_second_derivative_may_be_negative_and_steps_never_raise_the_loss() -> None:
    """From where all targets are far off: steps of Newton alone would go up."""
    of = loss(far=8.0)
    point = of.at(3 * normal(N, seed=3))
    assert float(torch.linalg.eigvalsh(point.hessian).min()) < 0 and point.newton() is None
    values = [point.value]
    for _ in range(60):
        point = point.reweighted()
        values.append(point.value)
    assert all(after <= before + 1e-12 for before, after in pairwise(values))
    assert values[-1] < values[0] - 1


def test_solving_with_the_expected_precisions_is_a_ridge_regression() -> None:
    of = loss()
    point = of.at(normal(N, seed=3))
    precisions = of.likelihood.noise_precisions(point.outputs, of.targets)
    k = of.root @ of.root.mT
    expected = k @ torch.linalg.solve(k + torch.diag(1 / precisions), of.targets)
    torch.testing.assert_close(point.reweighted().outputs, expected, rtol=1e-8, atol=1e-8)


def test_derivatives_at_a_point_are_those_of_the_loss() -> None:
    of = loss()
    point = of.at(normal(N, seed=3))
    value, gradient = dense(of, point.u.numpy())
    assert point.value == pytest.approx(value, rel=1e-12)
    torch.testing.assert_close(point.gradient, torch.from_numpy(gradient))

    def differentiable(u: Tensor) -> Tensor:
        noise = torch.distributions.StudentT(of.likelihood.df, of.root @ u, of.likelihood.scale)
        return -noise.log_prob(of.targets).sum() + 0.5 * u.square().sum()

    torch.testing.assert_close(point.hessian, torch.autograd.functional.hessian(differentiable, point.u))


def test_a_stationary_point_between_two_modes_is_left() -> None:
    """Two targets that contradict each other: halfway between them nothing pulls, and it is the highest point."""
    root = torch.tensor([[10.0, 0.0], [10.0, 0.0]], dtype=torch.float64)
    of = RobustLoss.of(root, torch.tensor([4.0, -4.0], dtype=torch.float64), StudentT(1.0, 0.1))
    between = of.at(torch.zeros(2).double())
    assert between.relative == 0.0 and not between.is_convex
    with Bar("mode") as bar:
        found, stopped = descended(between, 1e-9, bar)
    assert stopped == "converged" and abs(float(found.outputs[0])) == pytest.approx(4.0, abs=0.05)
    assert found.value < between.value - 1


def test_a_start_that_is_known_is_one_of_those_tried() -> None:
    """Here a lower minimum is elsewhere than where the Gaussian start and wider scales lead to: none finds all."""
    of = loss(0.5, 0.05, seed=5)
    alone = robust_mode(of, [], rtol=1e-9)
    lower = min(minima_of(of), key=lambda found: found.fun)
    assert lower.fun < of.at(alone.weights).value - 0.3
    found = robust_mode(of, [torch.from_numpy(lower.x)], rtol=1e-9)
    assert of.at(found.weights).value == pytest.approx(lower.fun, abs=1e-6)


@pytest.mark.parametrize("seed", [3, 19])
def test_modes_are_followed_from_wider_scales_and_looked_for_at_each(seed: int) -> None:
    """In the one, the lowest is found from a Gaussian start alone; in the other, from a wider scale alone."""
    of = loss(0.5, 0.1, seed=seed)
    mode = robust_mode(of, [], rtol=1e-9)
    assert mode.nll + 0.5 * float(mode.weights.square().sum()) <= min(found.fun for found in minima_of(of)) + 1e-6


@pytest.mark.parametrize("far", [False, True])
def test_whether_the_hessian_exceeds_a_number(far: bool) -> None:
    of = loss()
    point = of.at(robust_mode(of, [], rtol=1e-9).weights) if far else of.at(torch.linalg.solve(of.root, of.targets))
    assert point.is_near_all is not far
    least = float(torch.linalg.eigvalsh(point.hessian).min())
    assert point.exceeds(0.99 * min(least, 1.0))
    assert not far or not point.exceeds(1.01 * least)


def test_an_end_without_convergence_says_so() -> None:
    of = loss()
    with Bar("mode") as bar:
        point, stopped = descended(of.at(normal(N, seed=3)), 1e-9, bar, most=2)
    assert stopped == "iterations" and bar.done == 2 and point.relative > 1e-9


def test_what_overflows_is_refused() -> None:
    of = loss()
    with refused(NumericalError, "a scale of 76.8 for targets up to"):
        robust_mode(RobustLoss.of(1e200 * of.root, of.targets, of.likelihood), [], rtol=1e-9)
    assert math.isnan(loss().at(torch.full((N,), math.nan).double()).relative)
