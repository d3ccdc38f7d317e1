"""Newton's method on losses of a few numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lapwing.ground.errors import NumericalError
from lapwing.likelihoods import Bernoulli, Gaussian
from lapwing.linalg import Diagonal
from lapwing.linear.mode.loss import Line, Loss
from lapwing.linear.mode.newton import newton, search
from lapwing.linear.model import Matrix
from lapwing.linear.solvers import CG, SGD
from tests.posterior_cases import normal

PRIOR = Diagonal(torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64))
STRETCHED = normal(30, 3) * torch.tensor([9.0, 3.0, 1.0], dtype=torch.float64)


def margins(x: Tensor, *, squares: bool = False, examples: int = 64) -> Loss:
    """``Σ log(1 + exp(-x_i w))``, or half the squares of ``x_i w - 1``, with a prior."""
    likelihood = Gaussian() if squares else Bernoulli()
    return Loss(Matrix(x, torch.ones(len(x), 1).to(x), likelihood, examples=examples), PRIOR)


def objective(x: Tensor) -> Callable[[Tensor], Tensor]:
    """The first of them, written out."""
    return lambda w: torch.nn.functional.softplus(-x @ w).sum() + 0.5 * (PRIOR.values * w.square()).sum()


def at(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).expand(3)


@pytest.mark.parametrize("start", [0.0, 3.0, -300.0])
@pytest.mark.parametrize("size", [1.0, 50.0])
def test_the_minimum_has_no_gradient_from_wherever_it_started(start: float, size: float) -> None:
    x = size * normal(8, 3)
    loss = margins(x)
    found = newton(loss, loss.at_weights(at(start)), CG().newton_step, rtol=1e-9, steps=20)
    slope = torch.func.grad(objective(x))(found.weights)
    assert found.stopped == "converged" and found.gradient <= 1e-9
    assert slope.norm() <= 1e-7 * (PRIOR @ found.weights).norm()


def test_far_too_long_steps_are_mended_by_few_looks_along_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """From where all outputs are certain, and most of them wrong."""
    looks, slope = list[float](), Line.slope
    monkeypatch.setattr(Line, "slope", lambda line, length: (looks.append(length), slope(line, length))[1])
    prior = Diagonal(torch.logspace(-1, 1, 10, dtype=torch.float64))
    x = 50.0 * normal(40, 10)
    loss = Loss(Matrix(x, torch.ones(40, 1).to(x), Bernoulli()), prior)
    found = newton(
        loss, loss.at_weights(torch.full((10,), -300.0, dtype=torch.float64)), CG().newton_step, rtol=1e-9, steps=120
    )
    assert found.stopped == "converged" and len(looks) < 12 * found.iterations


def test_the_objective_never_rises() -> None:
    x = 80.0 * normal(8, 3)
    loss, value = margins(x), objective(x)
    point = loss.at_weights(at(-2.0, 1.0, 3.0))
    for _ in range(6):
        step = torch.linalg.solve(loss.problem(point).precision.dense(), -loss.gradient(point)[0])
        line = loss.line(point, step)
        moved = line.end(search(line))
        assert loss.value(moved) <= loss.value(point) * (1 + 1e-12)
        assert loss.value(moved) - loss.value(point) == pytest.approx(
            float(value(moved.weights) - value(point.weights))
        )
        point = moved


@pytest.mark.parametrize("part", [1.0, 0.1, 30.0])
def test_a_step_of_another_length_is_mended(part: float) -> None:
    loss = margins(normal(8, 3), squares=True)
    point = loss.at_weights(at(0.0))
    step = part * torch.linalg.solve(loss.problem(point).precision.dense(), point.score)
    assert 0.8 <= part * search(loss.line(point, step)) <= 1.2


def test_steps_run_out() -> None:
    loss = margins(50.0 * normal(8, 3))
    found = newton(loss, loss.at_weights(at(3.0)), CG().newton_step, rtol=1e-9, steps=1)
    assert (found.stopped, found.iterations) == ("iterations", 1)
    assert found.gradient > 1e-9


def test_a_loss_that_is_not_finite_is_refused() -> None:
    loss = margins(normal(8, 3))
    first = loss.at_weights(at(0.0))
    for bad in (replace(first, nll=float("nan")), replace(first, score=first.score / 0)):
        with pytest.raises(NumericalError, match="finite loss and gradient at the start"):
            newton(loss, bad, CG().newton_step, rtol=1e-9, steps=3)


def exact(x: Tensor) -> Tensor:
    """The minimum for squares."""
    return torch.linalg.solve(x.mT @ x + PRIOR.dense(), x.sum(0))


@pytest.mark.parametrize("start", [torch.zeros(3, dtype=torch.float64), normal(3, seed=4)])
def test_a_quadratic_is_solved_by_descent_until_nothing_is_left_of_the_gradient(start: Tensor) -> None:
    loss = margins(STRETCHED, squares=True)
    found = SGD(epochs=800, batch=30, rtol=0.1).minimise(loss, loss.at_weights(start), rtol=1e-4, steps=50)
    assert found.stopped == "converged" and found.gradient <= 1e-4
    assert loss.gradient(loss.at_weights(found.weights))[1] == pytest.approx(found.gradient, rel=1e-6)
    torch.testing.assert_close(found.weights, exact(STRETCHED), rtol=1e-3, atol=1e-5)


def test_noise_of_mini_batches_vanishes_with_what_is_left() -> None:
    x = normal(200, 3)
    loss = margins(x, squares=True)
    found = SGD(epochs=200, batch=64, rtol=0.1).minimise(loss, loss.at_weights(normal(3, seed=4)), rtol=1e-3, steps=50)
    assert found.stopped == "converged"
    torch.testing.assert_close(found.weights, exact(x), rtol=2e-3, atol=1e-4)


def test_epochs_run_out_over_all_solves() -> None:
    loss = margins(STRETCHED, squares=True)
    found = SGD(epochs=9, batch=30, rtol=0.5).minimise(loss, loss.at_weights(normal(3)), rtol=1e-9, steps=50)
    assert found.stopped == "iterations" and found.gradient > 1e-9
    assert 1 <= found.iterations <= 9 and found.matvecs < 9 + 20
