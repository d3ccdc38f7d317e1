"""Stochastic gradient descent on many objectives at once, one a column, with the longest steps that do."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Generic, Literal, TypeAlias, TypeVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import NumericalError
from lapwing.ground.results import Stopped

logger = logging.getLogger(__name__)

Gradient: TypeAlias = Callable[[Tensor], Tensor]
"""From a block of points ``[d, k]`` to an unbiased estimate of the gradient at each; asked once."""

Epoch: TypeAlias = Callable[[], Iterator[Gradient]]
"""The gradient estimates of one pass over the data, made anew for each pass."""

Schedule: TypeAlias = Literal["average", "linear"]
"""A constant step and the geometric average of the iterates, or a step that falls linearly to 0."""

WINDOW = 100
"""The geometric average forgets over one part in so many of all steps."""

GROWTH = 10.0
"""An epoch whose gradients are this many times longer than at the start was one of divergence."""

SHORTER = 4.0
"""A step that diverges, or whose noise allows no more progress, is divided by this."""

SHORTEST = 4.0**4
"""What noise divides a step by in all, at most."""

PROGRESS = 0.98
"""A gradient that is not below this fraction of the best for a while goes no further, where there are mini-batches."""

PROGRESS_IN_ONE_BATCH = 0.9999
"""The same where a step sees all the data."""

Q = TypeVar("Q")


@final
@dataclass(frozen=True, eq=False)
class Descended:
    """Where a descent is after a pass over the data.

    Args:
        value: The average of the iterates, or the last of them, by the schedule.
        gradient: The gradients met on the way, averaged geometrically: for a quadratic and averaged iterates an
            estimate of the gradient at ``value``, larger than it by what is left of the noise.
        steps: Steps taken.
        diverged: Whether a gradient was not finite or ten times the scale over the whole pass: the step is too long.
    """

    value: Float[Tensor, "d k"]
    gradient: Float[Tensor, "d k"]
    steps: int
    diverged: bool


def descend(
    start: Float[Tensor, "d k"],
    epoch: Epoch,
    *,
    step: float,
    steps: int,
    schedule: Schedule = "average",
    momentum: float = 0.9,
    clip: float = 10.0,
    scale: Float[Tensor, " k"] | None = None,
) -> Iterator[Descended]:
    """Stochastic gradient descent with Nesterov's momentum, all columns side by side, one pass over the data a turn.

        v ← μ v + g,   x ← x - η (g + μ v),   x̄ ← χ x + (1 - χ) x̄,   χ = 100 / T

    with x̄ for quadratics and constant η; for other objectives η falls linearly to 0 over the T steps, and x is the
    result (Lin et al. 2023; Antorán 2024, section 6.2.3). The points x are those at which gradients are taken.

    Args:
        start: First point of each column.
        epoch: The gradient estimates of one pass over the data.
        step: η, or the first of the falling steps.
        steps: Steps T of a whole descent.
        schedule: ``"average"`` or ``"linear"``.
        momentum: μ.
        clip: A longer gradient than so many times the scale is shortened to that.
        scale: Length of gradient that is nothing unusual, of each column; the first gradient's where that is longer.

    Yields:
        Where it is after each pass, without end; the same tensors each time, written over.

    Cost:
        The gradients; memory of five blocks ``[d, k]``.
    """
    x = start.clone()
    velocity = torch.zeros_like(start)
    mean = start.clone()
    slope = torch.zeros_like(start)
    bound = start.new_zeros(start.shape[1]) if scale is None else scale.to(start)
    forget = min(1.0, WINDOW / steps)
    taken = 0
    while True:
        total_length = torch.zeros_like(bound)
        before = taken
        for gradient in epoch():
            g = gradient(x)
            length = torch.linalg.vector_norm(g, dim=0)
            if taken == 0:
                bound = torch.maximum(bound, length)
                slope = g.clone()
            slope.lerp_(g, forget)
            total_length += length
            limit = clip * bound
            g = g * torch.where(length > limit, limit / length, 1.0)
            velocity.mul_(momentum).add_(g)
            rate = step if schedule == "average" else step * max(0.0, 1 - taken / steps)
            x.sub_(rate * (g + momentum * velocity))
            mean.lerp_(x, forget)
            taken += 1
        diverged = not bool((total_length <= GROWTH * (taken - before) * bound).all())
        yield Descended(mean if schedule == "average" else x, slope, taken, diverged)


@final
@dataclass(frozen=True, eq=False)
class Settled(Generic[Q]):
    """Where a descent with the longest steps that do came to.

    Args:
        value: The points.
        found: What a pass over the data finds there.
        steps: Steps taken.
        passes: Passes over the data.
        stopped: Why it ended.
    """

    value: Float[Tensor, "d k"]
    found: Q
    steps: int
    passes: int
    stopped: Stopped


def settle(
    start: Float[Tensor, "d k"],
    epoch: Epoch,
    about: Callable[[Descended], float],
    truth: Callable[[Float[Tensor, "d k"]], tuple[float, Q]],
    *,
    rtol: float,
    step: float,
    steps: int,
    epochs: int,
    schedule: Schedule = "average",
    momentum: float,
    clip: float,
    scale: Float[Tensor, " k"] | None = None,
) -> Settled[Q]:
    """A descent with the longest steps that do; see ``descend``.

    Those that diverge are divided by four, and it begins again; those that stagnate, where there is more than one
    mini-batch, too, and it goes on.

    Args:
        start: First point of each column.
        epoch: The gradient estimates of one pass over the data.
        about: What is left by the gradients met on the way, relatively.
        truth: What is left truly, relatively, and what else that pass over the data found.
        rtol: What may be left.
        step: Length of the first steps.
        steps: Mini-batches in an epoch.
        epochs: Passes over the data, at most.
        schedule: ``"average"`` or ``"linear"``; a falling step never stagnates.
        momentum: Nesterov's momentum.
        clip: See ``descend``.
        scale: See ``descend``.

    Raises:
        NumericalError: If every step diverged.
    """
    left = epochs
    taken = 0
    checks = 0
    length = step
    value = start
    leg: Leg[Q] | None = None
    patience = float(max(10, epochs // 8)) if schedule == "average" else math.inf
    progress = PROGRESS if steps > 1 else PROGRESS_IN_ONE_BATCH
    while left:
        descent = descend(
            value,
            epoch,
            step=length,
            steps=steps * epochs,
            schedule=schedule,
            momentum=momentum,
            clip=clip,
            scale=scale,
        )
        leg = _leg(islice(descent, left), about, truth, rtol, patience, progress)
        logger.debug("mini-batch descent %s after %d steps of %.2g", leg.stopped or "diverged", leg.now.steps, length)
        left -= leg.passes
        taken += leg.now.steps
        checks += len(leg.found)
        length /= SHORTER
        value = start if leg.stopped is None else leg.now.value
        limited_by_noise = steps > 1 and leg.stopped == "stagnated" and length > step / SHORTEST
        if leg.stopped is not None and not limited_by_noise:
            break
    if leg is None or leg.stopped is None:
        raise NumericalError(
            "a step with which mini-batch descent does not diverge",
            f"steps of {SHORTER * length:.2g}",
            "larger batches, or CG()",
        )
    passes = epochs - left + checks
    if leg.stopped == "converged":
        return Settled(value, leg.found[-1], taken, passes, leg.stopped)
    return Settled(value, truth(value)[1], taken, passes + 1, leg.stopped)


@final
@dataclass(frozen=True, eq=False)
class Leg(Generic[Q]):
    """A descent with steps of one length, until it diverges, is done or goes no further.

    Args:
        now: Where it is.
        passes: Passes over the data it took.
        stopped: Why it ended; ``None`` where it diverged.
        found: What each look at the truth found.
    """

    now: Descended
    passes: int
    stopped: Stopped | None
    found: list[Q]


def _leg(
    descent: Iterator[Descended],
    about: Callable[[Descended], float],
    truth: Callable[[Tensor], tuple[float, Q]],
    rtol: float,
    patience: float,
    progress: float,
) -> Leg[Q]:
    """Follow a descent; the truth is looked at where the gradients met on the way say that it is done."""
    goal = rtol
    best = math.inf
    since = 0
    found = list[Q]()
    number = 0
    now = None
    for number, now in enumerate(descent, 1):
        if now.diverged:
            return Leg(now, number, None, found)
        rest = about(now)
        if rest <= goal:
            true, what = truth(now.value)
            found.append(what)
            if true <= rtol:
                return Leg(now, number, "converged", found)
            goal = rest / 2
        if rest < progress * best:
            best = rest
            since = number
        if number - since >= patience:
            return Leg(now, number, "stagnated", found)
    assert now is not None
    return Leg(now, number, "iterations", found)


@final
@dataclass(frozen=True, eq=False)
class WhitenedGradient:
    """The estimate by one of m mini-batches S, in coordinates ``z = A^½ x`` in which the prior is standard normal.

        g = m A^-½ Σ_{i∈S} ∇_i(A^-½ z) + z - t

    Args:
        pieces: From x to the gradient of what each piece of the data adds to the objective.
        root: ``A^½``.
        batches: m.
        target: t, what else the gradient in z has taken off.
    """

    pieces: Iterable[Callable[[Tensor], Tensor]]
    root: Float[Tensor, "d 1"]
    batches: int
    target: Float[Tensor, "d k"] | float = 0.0

    def __call__(self, z: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        """The gradient at z."""
        x = z / self.root
        total = torch.zeros_like(z)
        for gradient in self.pieces:
            total += gradient(x)
        return self.batches * total / self.root + z - self.target
