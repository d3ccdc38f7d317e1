"""Stochastic gradient descent on many objectives at once, one a column, and what ends it or shortens its steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, TypeAlias, TypeVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import NumericalError
from lapwing.ground.results import Stopped

logger = logging.getLogger(__name__)

Gradient: TypeAlias = Callable[[Tensor], Tensor]
"""From a block of points ``[d, k]`` to an unbiased estimate of the gradient at each; asked once."""

Schedule: TypeAlias = Literal["average", "linear"]
"""A constant step and the geometric average of the iterates, or a step that falls linearly to 0."""

WINDOW = 100
"""The geometric average forgets over one part in so many of all steps."""

GROWTH = 10.0
"""An epoch whose gradients are this many times longer than at the start was one of divergence."""

SHORTER, SHORTEST = 4.0, 4.0**4
"""A step that diverges, or whose noise allows no more progress, is divided by the first; noise, in all, by the last."""

Q = TypeVar("Q")


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


@final
@dataclass(eq=False)
class Watch(Generic[Q]):
    """Ends a descent at its tolerance, or where it goes no further.

    Args:
        about: What is left by the gradients met on the way, relatively.
        truth: What is left truly, relatively, and what else that pass over the data found.
        rtol: What may be left.
        patience: Epochs without progress after which it goes no further; ``None`` for never.
        progress: What is left must fall below this part of the least so far to be progress.
        after: Called after each epoch with what about is left.
    """

    about: Callable[[Descent], float]
    truth: Callable[[Float[Tensor, "d k"]], tuple[float, Q]]
    rtol: float
    patience: int | None = None
    progress: float = 1.0
    after: Callable[[float], None] = lambda _: None
    passes: int = field(default=0, init=False)
    found: Q | None = field(default=None, init=False)
    goal: float = field(init=False)
    best: float = field(init=False)
    since: int = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget what the last step length led to."""
        self.goal, self.best, self.since = self.rtol, float("inf"), 0

    def __call__(self, now: Descent) -> Stopped | None:
        """``"converged"``, ``"stagnated"`` or ``None``."""
        about = self.about(now)
        self.after(about)
        if about <= self.goal:
            left, found = self.truth(now.value)
            self.passes += 1
            if left <= self.rtol:
                self.found = found
                return "converged"
            self.goal = about / 2
        if about < self.progress * self.best:
            self.best, self.since = about, now.epochs
        stuck = self.patience is not None and now.epochs - self.since >= self.patience
        return "stagnated" if stuck else None

    def ended(self, value: Float[Tensor, "d k"]) -> Q:
        """What a pass over the data finds at the end, which is known where it converged."""
        if self.found is None:
            self.passes += 1
            return self.truth(value)[1]
        return self.found


def settle(
    start: Float[Tensor, "d k"],
    epoch: Callable[[], Iterator[Gradient]],
    watch: Watch[Q],
    *,
    step: float,
    steps: int,
    epochs: int,
    schedule: Schedule = "average",
    momentum: float,
    clip: float,
    scale: Float[Tensor, " k"] | None = None,
) -> tuple[Descent, Stopped]:
    """A descent with the longest steps that do, and why it ended; see ``descend``.

    Those that diverge are divided by four, and it begins again; those that stagnate, where there is more than one
    mini-batch, too, and it goes on.

    Args:
        start: First point of each column.
        epoch: The gradient estimates of one pass over the data.
        watch: What ends it.
        step: Length of the first steps.
        steps: Mini-batches in an epoch.
        epochs: Passes over the data, at most.
        schedule: ``"average"`` or ``"linear"``.
        momentum: Nesterov's momentum.
        clip: See ``descend``.
        scale: See ``descend``.

    Raises:
        NumericalError: If every step diverged.
    """
    left, taken, length, stopped = epochs, 0, step, None
    done = Descent(start, start, 0, 0, stopped)
    while left and (stopped is None or (steps > 1 and stopped == "stagnated" and length > step / SHORTEST)):
        done = descend(
            start if stopped is None else done.value,
            epoch,
            step=length,
            steps=steps * epochs,
            epochs=left,
            schedule=schedule,
            momentum=momentum,
            clip=clip,
            scale=scale,
            watch=watch,
        )
        left, taken, stopped = left - done.epochs, taken + done.steps, done.stopped
        logger.debug("mini-batch descent %s after %d steps of %.2g", stopped or "diverged", done.steps, length)
        length /= SHORTER
        watch.restart()
    if stopped is None:
        raise NumericalError(
            "a step with which mini-batch descent does not diverge",
            f"steps of {SHORTER * length:.2g}",
            "larger batches, or CG()",
        )
    return replace(done, steps=taken, epochs=epochs - left), stopped
