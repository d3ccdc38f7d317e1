"""A descent that ends at its tolerance by the true gradient, and takes shorter steps where those it has do not do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar, final

from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import NumericalError
from lapwing.ground.results import Stopped
from lapwing.linear.solvers.descent import Descent, Gradient, Schedule, descend

logger = logging.getLogger(__name__)

SHORTER, SHORTEST = 4.0, 4.0**4
"""A step that diverges, or whose noise allows no more progress, is divided by the first; noise, in all, by the last."""

Q = TypeVar("Q")


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
