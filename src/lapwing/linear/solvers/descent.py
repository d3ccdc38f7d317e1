"""Stochastic gradient descent on many objectives at once, one a column, with either way to make it converge."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.results import Stopped

Gradient: TypeAlias = Callable[[Tensor], Tensor]
"""From a block of points ``[d, k]`` to an unbiased estimate of the gradient at each; asked once."""

Schedule: TypeAlias = Literal["average", "linear"]
"""A constant step and the geometric average of the iterates, or a step that falls linearly to 0."""

WINDOW = 100
"""The geometric average forgets over one part in so many of all steps."""

GROWTH = 10.0
"""An epoch whose gradients are this many times longer than at the start was one of divergence."""


@final
@dataclass(frozen=True, eq=False)
class Descent:
    """Where a descent came to.

    Args:
        value: The average of the iterates, or the last of them, by the schedule.
        gradient: The gradients met on the way, averaged geometrically: for a quadratic and averaged iterates an
            estimate of the gradient at ``value``, larger than it by what is left of the noise.
        steps: Steps taken.
        epochs: Passes over the data.
        stopped: Why it ended; ``None`` where it diverged.
    """

    value: Float[Tensor, "d k"]
    gradient: Float[Tensor, "d k"]
    steps: int
    epochs: int
    stopped: Stopped | None


def descend(
    start: Float[Tensor, "d k"],
    epoch: Callable[[], Iterator[Gradient]],
    *,
    step: float,
    steps: int,
    epochs: int,
    schedule: Schedule = "average",
    momentum: float = 0.9,
    clip: float = 10.0,
    scale: Float[Tensor, " k"] | None = None,
    watch: Callable[[Descent], Stopped | None] = lambda _: None,
) -> Descent:
    """Stochastic gradient descent with Nesterov's momentum, all columns side by side.

        v ← μ v + g,   x ← x - η (g + μ v),   x̄ ← χ x + (1 - χ) x̄,   χ = 100 / T

    with x̄ for quadratics and constant η; for other objectives η falls linearly to 0 over the T steps, and x is the
    result (Lin et al. 2023; Antorán 2024, section 6.2.3). The points x are those at which gradients are taken.

    Args:
        start: First point of each column.
        epoch: The gradient estimates of one pass over the data, made anew for each pass.
        step: η, or the first of the falling steps.
        steps: Steps T of a whole descent.
        epochs: Passes over the data, at most.
        schedule: ``"average"`` or ``"linear"``.
        momentum: μ.
        clip: A longer gradient than so many times the scale is shortened to that.
        scale: Length of gradient that is nothing unusual, of each column; the first gradient's where that is longer.
        watch: Shown where the descent is after each pass; a reason to stop ends it.

    Returns:
        Where it came to. ``stopped`` is ``None`` if a gradient was not finite or ten times the scale over a whole
        epoch: the step is too long.

    Cost:
        The gradients; memory of five blocks ``[d, k]``.
    """
    x, velocity, mean = start.clone(), torch.zeros_like(start), start.clone()
    slope: Tensor | None = None
    bound = start.new_zeros(start.shape[1]) if scale is None else scale.to(start)
    forget, taken = min(1.0, WINDOW / steps), 0

    def reached(number: int, stopped: Stopped | None) -> Descent:
        gradient = torch.zeros_like(start) if slope is None else slope
        return Descent(mean if schedule == "average" else x, gradient, taken, number, stopped)

    for number in range(1, epochs + 1):
        longest = torch.zeros_like(bound)
        first = taken
        for gradient in epoch():
            g = gradient(x)
            length = torch.linalg.vector_norm(g, dim=0)
            if taken == 0:
                bound = torch.maximum(bound, length)
            slope = g.clone() if slope is None else slope.lerp_(g, forget)
            longest += length
            limit = clip * bound
            g = g * torch.where(length > limit, limit / length, 1.0)
            velocity.mul_(momentum).add_(g)
            rate = step if schedule == "average" else step * max(0.0, 1 - taken / steps)
            x.sub_(rate * (g + momentum * velocity))
            mean.lerp_(x, forget)
            taken += 1
        if not bool((longest <= GROWTH * (taken - first) * bound).all()):
            return reached(number, None)
        stopped = watch(reached(number, None))
        if stopped is not None:
            return reached(number, stopped)
    return reached(epochs, "iterations")
