"""The loop of stochastic gradient descent against PyTorch's optimiser, and its guards."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest
import torch
from torch import Tensor

from lapwing.ground.results import Stopped
from lapwing.linear.nesterov import Descended, Gradient, Schedule, Settled, descend, settle
from tests.posterior_cases import normal

START = normal(5, 2)
MATRICES = [torch.diag(torch.tensor(values, dtype=torch.float64)) for values in ([1.0, 2, 3, 4, 5], [5.0, 1, 1, 2, 9])]


def epoch() -> Iterator[Gradient]:
    """Two mini-batches."""
    for matrix in MATRICES:
        yield lambda x, matrix=matrix: matrix @ x + torch.tanh(x) - 1


def after(passes: int, descent: Iterator[Descended]) -> Descended:
    """Where a descent is after so many passes."""
    *_, now = islice(descent, passes)
    return now


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
    found = after(3, descend(START, epoch, step=0.05, steps=total, schedule=schedule, momentum=0.8, clip=1e9))
    torch.testing.assert_close(found.value, mean if schedule == "average" else weights.detach())
    assert slope is not None
    torch.testing.assert_close(found.gradient, slope)
    assert found.steps == 6 and not found.diverged


def test_the_falling_step_ends_at_zero() -> None:
    found = after(40, descend(START, epoch, step=0.05, steps=80, schedule="linear"))
    longer = after(80, descend(START, epoch, step=0.05, steps=80, schedule="linear"))
    assert (longer.value - found.value).norm() < 1e-6
    total = MATRICES[0] + MATRICES[1]
    assert (total @ found.value + 2 * torch.tanh(found.value) - 2).norm() < 0.1


def test_long_gradients_are_shortened_column_by_column() -> None:
    def steep() -> Iterator[Gradient]:
        yield lambda x: torch.stack([torch.full((5,), 100.0), torch.ones(5)], dim=1).double()

    scale = torch.tensor([5.0**0.5, 5.0**0.5], dtype=torch.float64)
    found = next(descend(START, steep, step=1.0, steps=100, momentum=0.0, clip=0.02, scale=scale))
    # The scale of the first column is its own first gradient, 100 √5: a fiftieth of it is 2 √5.
    expected = torch.stack([torch.full((5,), 2.0), torch.full((5,), 0.02)], dim=1).double()
    torch.testing.assert_close(START - found.value, expected)


@pytest.mark.parametrize("step", [1.0, 1e200])
def test_a_divergence_is_seen(step: float) -> None:
    assert any(now.diverged for now in islice(descend(START, epoch, step=step, steps=200, clip=1e300), 99))


def settled(step: float, epochs: int, rtol: float = 1e-9, schedule: Schedule = "average") -> tuple[Settled[int], int]:
    """A descent whose gradients tell all, and how often the truth was asked for."""
    total, asked = MATRICES[0] + MATRICES[1], list[int]()

    def truth(x: Tensor) -> tuple[float, int]:
        asked.append(1)
        return float((total @ x + 2 * torch.tanh(x) - 2).norm()), len(asked)

    def about(now: Descended) -> float:
        return 2 * float(now.gradient.norm())

    options = {"steps": 2, "epochs": epochs, "schedule": schedule, "momentum": 0.5, "clip": 1e9}
    return settle(START, epoch, about, truth, rtol=rtol, step=step, **options), len(asked)


@pytest.mark.parametrize(
    ("step", "epochs", "stopped"), [(0.02, 10, "iterations"), (3.0, 10, "iterations"), (1e-9, 80, "stagnated")]
)
def test_it_goes_on_for_as_many_passes_as_there_are(step: float, epochs: int, stopped: Stopped) -> None:
    """Steps that diverge are shortened until they do not; those that lead nowhere end it."""
    found, asked = settled(step, epochs)
    assert found.stopped == stopped and found.found == asked
    assert found.passes <= epochs + asked and found.steps <= 2 * epochs
    assert (found.value - START).norm() > 1 or stopped == "stagnated"


def test_it_ends_where_the_truth_is_within_the_tolerance() -> None:
    found, asked = settled(0.02, 400, rtol=0.2, schedule="linear")
    assert found.stopped == "converged" and found.found == asked and found.passes < 300


def test_the_start_is_left_as_it_is() -> None:
    start: Tensor = START.clone()
    after(2, descend(start, epoch, step=0.05, steps=100))
    assert torch.equal(start, START)
