"""Newton's method on losses of a few numbers."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from lapwing.ground.errors import NumericalError
from lapwing.linalg import Diagonal
from lapwing.linear.matrix import Matrix
from lapwing.linear.problem import Problem
from lapwing.linear.solvers import CG
from lapwing.linear.solvers.newton import Point, gradient_of, minimise, objective, search
from tests.posterior_cases import normal

PRIOR = Diagonal(torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64))


@dataclass
class Margins:
    """``Σ log(1 + exp(-x_i w))``, or half the squares of ``x_i w - 1``."""

    x: Tensor
    squares: bool = False

    def loss(self, w: Tensor) -> Tensor:
        margins = self.x @ w
        return 0.5 * (margins - 1.0).square().sum() if self.squares else torch.nn.functional.softplus(-margins).sum()

    def evaluate(self, weights: Tensor) -> Point:
        return Point(weights, -torch.func.grad(self.loss)(weights), float(self.loss(weights)))

    def problem(self, weights: Tensor) -> Problem:
        p = torch.sigmoid(self.x @ weights)
        bend = torch.ones_like(p) if self.squares else p * (1 - p)
        return Problem.of(Matrix(bend.sqrt()[:, None] * self.x), PRIOR)

    def line(self, point: Point, step: Tensor) -> Along:
        return Along(self, point.weights, step)


@dataclass
class Along:
    """The loss along a line."""

    of: Margins
    weights: Tensor
    step: Tensor

    def value(self, length: float) -> float:
        return float(self.of.loss(self.weights + length * self.step))

    def slope(self, length: float) -> float:
        return float(torch.func.grad(self.of.loss)(self.weights + length * self.step) @ self.step)

    def end(self, length: float) -> Point:
        return self.of.evaluate(self.weights + length * self.step)


@pytest.mark.parametrize("start", [0.0, 3.0, -300.0])
@pytest.mark.parametrize("size", [1.0, 50.0])
def test_the_minimum_has_no_gradient_from_wherever_it_started(start: float, size: float) -> None:
    loss = Margins(size * normal(8, 3))
    first = loss.evaluate(torch.full((3,), start, dtype=torch.float64))
    found = minimise(loss, first, PRIOR, CG(), rtol=1e-9, steps=60)
    slope = torch.func.grad(lambda w: loss.loss(w) + 0.5 * (PRIOR.values * w.square()).sum())(found.point.weights)
    assert found.stopped == "converged" and found.gradient <= 1e-9
    assert slope.norm() <= 1e-7 * (PRIOR @ found.point.weights).norm()


def test_the_objective_never_rises() -> None:
    loss = Margins(80.0 * normal(8, 3))
    point = loss.evaluate(torch.tensor([-2.0, 1.0, 3.0], dtype=torch.float64))
    for _ in range(6):
        slope, _ = gradient_of(point, PRIOR)
        step = torch.linalg.solve(loss.problem(point.weights).precision.dense(), -slope)
        line = loss.line(point, step)
        moved = line.end(search(line, point, step, PRIOR))
        assert objective(moved, PRIOR) <= objective(point, PRIOR) * (1 + 1e-12)
        point = moved


@pytest.mark.parametrize("part", [1.0, 0.1, 30.0])
def test_a_step_of_another_length_is_mended(part: float) -> None:
    loss = Margins(normal(8, 3), squares=True)
    point = loss.evaluate(torch.zeros(3, dtype=torch.float64))
    step = part * torch.linalg.solve(loss.problem(point.weights).precision.dense(), point.score)
    assert 0.8 <= part * search(loss.line(point, step), point, step, PRIOR) <= 1.2


def test_steps_run_out() -> None:
    loss = Margins(50.0 * normal(8, 3))
    first = loss.evaluate(torch.full((3,), 3.0, dtype=torch.float64))
    found = minimise(loss, first, PRIOR, CG(), rtol=1e-9, steps=1)
    assert (found.stopped, found.iterations) == ("iterations", 1)
    assert found.gradient > 1e-9


def test_a_loss_that_is_not_finite_is_refused() -> None:
    loss = Margins(normal(8, 3))
    first = loss.evaluate(torch.zeros(3, dtype=torch.float64))
    with pytest.raises(NumericalError, match="finite loss and gradient at the start"):
        minimise(loss, Point(first.weights, first.score, float("nan")), PRIOR, CG(), rtol=1e-9, steps=3)
