"""What was found at a prior precision, and which of several findings is taken."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import DataError
from lapwing.predictive import Link
from lapwing.tuning.held_out.outputs import HeldOut
from lapwing.tuning.parabola import vertex

CLOSE = 0.02
"""Where the search ends: a difference in the logarithm of the precision that no loss can tell."""

FINE = 2**-10
"""Logarithms tried are multiples of this: rounding changes one only at an edge of the grid."""

UNEVEN = 4.0
"""Times that the best is nearer to one neighbour than to the other beyond which a parabola through them creeps."""

ROUNDING = 1e-6
"""Relative difference of losses that is none, in single precision."""


@final
@dataclass(frozen=True)
class Trial:
    """What was found at a prior precision.

    Args:
        log_factor: Logarithm of the precisions over those of the start.
        loss: Mean negative log predictive density, nats.
        link: The link.
        temperature: Its temperature.
        noise: Noise precision over that of the start.
        penalty: What the temperature costs, nats a target.
        moving_penalty: What it costs that the precision is far from that of the start, nats a target.
        losses: Of each target that this process has, nats.
    """

    log_factor: float
    loss: float
    link: Link
    temperature: float = 1.0
    noise: float = 1.0
    penalty: float = 0.0
    moving_penalty: float = 0.0
    losses: Float[Tensor, " m"] = field(default_factory=lambda: torch.zeros(0), compare=False, repr=False)

    @property
    def objective(self) -> float:
        """What a search minimises, nats a target."""
        return self.loss + self.penalty + self.moving_penalty


@final
@dataclass(eq=False)
class Curve:
    """The losses of one link along the prior precisions.

    Args:
        link: The link.
        scaled: Whether each precision has a temperature of its own.
        eligible: Whether the search may choose from it.
        trials: What was found.
        network: What was found of the network itself, where that was tried.
    """

    link: Link
    scaled: bool = False
    eligible: bool = True
    trials: list[Trial] = field(default_factory=list[Trial])
    network: Trial | None = None

    @property
    def whole(self) -> list[Trial]:
        """All that was found, the network first."""
        return self.trials if self.network is None else [self.network, *self.trials]

    @property
    def lowest(self) -> float:
        """The least that was found."""
        return min(trial.objective for trial in self.trials)

    @property
    def between(self) -> float | None:
        """Where to look next: the vertex of a parabola, or the middle of the wider side of the best.

        ``None`` where the best is at an end, or the vertex ``CLOSE`` to it.
        """
        path = sorted(self.trials, key=lambda trial: trial.log_factor)
        best = min(path, key=lambda trial: trial.objective)
        found = vertex((trial.log_factor, trial.objective) for trial in path)
        if found is None or abs(found[0] - best.log_factor) < CLOSE:
            return None
        place = path.index(best)
        below = best.log_factor - path[place - 1].log_factor
        above = path[place + 1].log_factor - best.log_factor
        nearer = min(below, above)
        if max(below, above) > UNEVEN * nearer and abs(found[0] - best.log_factor) <= nearer:
            middle = best.log_factor + (above / 2 if above > below else -below / 2)
            return FINE * round(middle / FINE)
        return FINE * round(found[0] / FINE)


@final
@dataclass(eq=False)
class Found:
    """What a search has found.

    Args:
        curves: The losses along the precisions.
        visited: The best of what may be chosen, at each precision in the order of the search.
        plain: The loss of the network alone.
        interrupted: Whether Ctrl-C ended the search.
    """

    curves: list[Curve]
    visited: list[Trial] = field(default_factory=list[Trial])
    plain: float = math.nan
    interrupted: bool = False

    @property
    def eligible(self) -> list[Curve]:
        """The curves that may be chosen from."""
        return [curve for curve in self.curves if curve.eligible]

    def is_plain(self, trial: Trial) -> bool:
        """Whether a trial without a temperature is the network alone, to rounding."""
        return trial.temperature == 1.0 and abs(trial.loss - self.plain) <= ROUNDING * abs(self.plain)


def least(trials: Sequence[Trial]) -> Trial:
    """The first whose loss is the least, to ``ROUNDING``: the simplest link, the strongest prior."""
    best = min(one.objective for one in trials)
    return next(one for one in trials if one.objective <= best + ROUNDING * abs(best))


@final
@dataclass(frozen=True)
class Mean:
    """A mean over the targets of all processes.

    Args:
        value: The mean; infinite where it is no number.
        error: Its standard error.
        targets: How many there are.
    """

    value: float
    error: float
    targets: float


def mean_of(data: HeldOut[Any], values: Float[Tensor, " m"]) -> Mean:
    """The mean of one number of each target.

    Args:
        data: The held-out data.
        values: Those of the targets that this process has.

    Raises:
        DataError: If there is no target.
    """
    total, counted = data.added(float(values.sum()), float(len(values)))
    if not counted:
        cure = "other data, or labels that are not -100"
        raise DataError("held-out data with a target", "ignored labels alone", cure)
    mean = total / counted
    if not math.isfinite(mean):
        return Mean(math.inf, math.inf, counted)
    (squares,) = data.added(float((values - mean).square().sum()))
    error = math.sqrt(squares / (counted - 1) / counted) if counted > 1 else math.inf
    return Mean(mean, error, counted)


def difference(data: HeldOut[Any], one: Trial, other: Trial) -> Mean:
    """How much larger the loss of one trial is than that of another, target by target.

    Args:
        data: The held-out data.
        one: The first.
        other: The second.
    """
    alike = one.losses.shape == other.losses.shape
    apart = one.losses - other.losses if alike else torch.tensor([math.inf])  # else a rate overflowed
    return mean_of(data, apart)
