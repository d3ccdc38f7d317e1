"""The loop of stochastic gradient descent against PyTorch's optimiser, and its guards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from lapwing.ground.results import Stopped
from lapwing.linear.solvers.descent import Descent, Gradient, Schedule, descend
from tests.posterior_cases import normal

START = normal(5, 2)
MATRICES = [torch.diag(torch.tensor(values, dtype=torch.float64)) for values in ([1.0, 2, 3, 4, 5], [5.0, 1, 1, 2, 9])]


def epoch() -> Iterator[Gradient]:
    """Two mini-batches."""
    for matrix in MATRICES:
        yield lambda x, matrix=matrix: matrix @ x + torch.tanh(x) - 1


@pytest.mark.parametrize("schedule", ["average", "linear"])
def test_steps_are_those_of_the_optimiser(schedule: Schedule) -> None:
    weights = torch.nn.Parameter(START.clone())
    optimiser = torch.optim.SGD([weights], lr=0.05, momentum=0.8, nesterov=True)
    total = 250
    falling = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda t: 1 - t / total if schedule == "linear" else 1.0)
    mean, slope = START.clone(), None
    for _ in range(3):
        for gradient in epoch():
            weights.grad = gradient(weights.detach())
            slope = weights.grad.clone() if slope is None else 0.4 * weights.grad + 0.6 * slope
            optimiser.step()
            falling.step()
            mean = 0.4 * weights.detach() + 0.6 * mean
    found = descend(START, epoch, step=0.05, steps=total, epochs=3, schedule=schedule, momentum=0.8, clip=1e9)
    torch.testing.assert_close(found.value, mean if schedule == "average" else weights.detach())
    assert slope is not None
    torch.testing.assert_close(found.gradient, slope)
    assert (found.steps, found.epochs, found.stopped) == (6, 3, "iterations")


def test_the_falling_step_ends_at_zero() -> None:
    found = descend(START, epoch, step=0.05, steps=80, epochs=40, schedule="linear")
    longer = descend(START, epoch, step=0.05, steps=80, epochs=80, schedule="linear")
    assert (longer.value - found.value).norm() < 1e-6
    total = MATRICES[0] + MATRICES[1]
    assert (total @ found.value + 2 * torch.tanh(found.value) - 2).norm() < 0.1


def test_long_gradients_are_shortened_column_by_column() -> None:
    def steep() -> Iterator[Gradient]:
        yield lambda x: torch.stack([torch.full((5,), 100.0), torch.ones(5)], dim=1).double()

    scale = torch.tensor([5.0**0.5, 5.0**0.5], dtype=torch.float64)
    found = descend(START, steep, step=1.0, steps=100, epochs=1, momentum=0.0, clip=0.02, scale=scale)
    # The scale of the first column is its own first gradient, 100 √5: a fiftieth of it is 2 √5.
    expected = torch.stack([torch.full((5,), 2.0), torch.full((5,), 0.02)], dim=1).double()
    torch.testing.assert_close(START - found.value, expected)


@pytest.mark.parametrize("step", [1.0, 1e200])
def test_a_divergence_ends_it(step: float) -> None:
    found = descend(START, epoch, step=step, steps=200, epochs=100, clip=1e300)
    assert found.stopped is None and found.epochs < 100


def test_the_watch_may_end_it() -> None:
    seen: list[int] = []

    def watch(now: Descent) -> Stopped | None:
        seen.append(now.steps)
        return "converged" if now.epochs == 3 else None

    found = descend(START, epoch, step=0.05, steps=100, epochs=50, watch=watch)
    assert seen == [2, 4, 6] and found.stopped == "converged" and found.epochs == 3


def test_the_start_is_left_as_it_is() -> None:
    start: Tensor = START.clone()
    descend(start, epoch, step=0.05, steps=100, epochs=2)
    assert torch.equal(start, START)
