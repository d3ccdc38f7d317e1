"""Conformal intervals of real targets: as wide as it takes to hold them with a probability that is guaranteed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.baselines.conformal_quantile import Coverage, OnPredictor, conformal_quantile, predictor_of
from lapwing.evaluation.evaluate import Predictor
from lapwing.evaluation.task import Entry, Task
from lapwing.ground.data.sources import Data, Source, Unpack
from lapwing.ground.errors import UnsupportedError, check_fraction
from lapwing.ground.precision import wide
from lapwing.ground.progress import working
from lapwing.jacobian.network.modes import undisturbed
from lapwing.predictive import Predictive


@final
@dataclass(frozen=True)
class ConformalIntervals:
    """Intervals that hold a real target with a probability of at least ``level``, whatever predicts.

        [μ(x) - q w(x), μ(x) + q w(x)],   q = the ⌈(n + 1) level⌉-th smallest of |y_i - μ(x_i)| / w(x_i)

    of n held-out examples, for each output by itself. The width w is the standard deviation of the prediction, noise
    included, or 1. The probability is over held-out and new examples, which must be alike; it is not that of one input.

    Args:
        of: What predicts: an entry, which is fitted without the validation data, or a predictor; ``None`` for the plain
            network.
        level: Probability.
        scaled: Whether w is the standard deviation, so that intervals are wider where less is known.

    Raises:
        ConfigError: If the level is none.

    Cost:
        That of what predicts, and a prediction of the held-out data, of which one number a target is kept.

    Example:
        >>> import lapwing as lw
        >>> x = torch.randn(60, 1)
        >>> task = Task(torch.nn.Identity(), (x, x), (x, x + torch.randn(60, 1)), lw.Gaussian())
        >>> low, high = ConformalIntervals(level=0.8).fit(task).interval(x)
        >>> bool((low < high).all())
        True

    Source: J. Lei, M. G'Sell, A. Rinaldo, R. J. Tibshirani and L. Wasserman, Distribution-Free Predictive Inference for
        Regression, 2018, algorithm 2 and section 5.2.
    """

    of: Entry | Predictor | None = None
    level: float = field(default=0.9, kw_only=True)
    scaled: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        check_fraction("level", self.level, "level=0.9")

    def fit(self, task: Task) -> PredictionIntervals:
        """Intervals for a task, calibrated by its validation data.

        Args:
            task: The network and its data.

        Raises:
            ConfigError: If there are no validation data.
            DataError: If there are too few of them for the level.
            UnsupportedError: If targets are no real numbers.
        """
        held_out = task.held_out("ConformalIntervals")
        return self.on(predictor_of(self.of, task, "ConformalIntervals"), held_out, unpack=task.unpack)

    @undisturbed()
    @working("conformal intervals")
    def on(self, predictor: Predictor, held_out: Source, *, unpack: Unpack | None = None) -> PredictionIntervals:
        """Intervals on top of a predictor, calibrated by data that it has not seen, nor been tuned by.

        Args:
            predictor: What predicts.
            held_out: Those data.
            unpack: Splits what a loader yields into inputs and targets.

        Raises:
            DataError: If there are too few examples for the level.
            UnsupportedError: If targets are no real numbers.
        """
        found: list[Tensor] = []
        for batch in Data(held_out, unpack=unpack):
            prediction = predictor.predict(batch.inputs)
            moments = real(prediction)
            targets = predictor.likelihood.targets_of(prediction, batch.targets)
            apart = (wide(targets) - wide(moments.mean)).abs() / widths(moments, self.scaled)
            found.append(apart.flatten(0, -2).cpu())
        return PredictionIntervals(predictor, conformal_quantile(torch.cat(found), self.level), self.scaled)


@final
@dataclass(frozen=True, eq=False)
class PredictionIntervals(OnPredictor):
    """A predictor with intervals on top; see ``ConformalIntervals``.

    Args:
        predictor: What predicts.
        thresholds: q of each output, float64.
        scaled: Whether they are in standard deviations of the prediction.
    """

    thresholds: Float[Tensor, " c"]
    scaled: bool

    def interval(self, x: Any, **options: Any) -> tuple[Float[Tensor, "*batch c"], Float[Tensor, "*batch c"]]:
        """Lower and upper ends, ``[n, *event, c]`` each, in the unit of the targets.

        Args:
            x: Inputs.
            **options: Of the predictor's own ``predict``.
        """
        return self._ends(real(self.predict(x, **options)))

    @working("coverage")
    def coverage(self, test: Source, *, unpack: Unpack | None = None) -> Coverage:
        """How often the intervals hold the target, and how wide they are.

        Args:
            test: Data that neither trained nor calibrated.
            unpack: Splits what a loader yields into inputs and targets.
        """
        inside: list[Tensor] = []
        sizes: list[Tensor] = []
        for batch in Data(test, unpack=unpack):
            prediction = self.predict(batch.inputs)
            targets = self.likelihood.targets_of(prediction, batch.targets)
            low, high = self._ends(real(prediction))
            holds = (low <= targets) & (targets <= high)
            inside.append(wide(holds).mean(-1).flatten().cpu())
            sizes.append((high - low).mean(-1).flatten().cpu())
        return Coverage.of(torch.cat(inside), torch.cat(sizes))

    def _ends(self, prediction: WithMoments) -> tuple[Float[Tensor, "*batch c"], Float[Tensor, "*batch c"]]:
        mean = wide(prediction.mean)
        half = self.thresholds.to(mean.device) * widths(prediction, self.scaled)
        return (mean - half).to(prediction.mean), (mean + half).to(prediction.mean)


@runtime_checkable
class WithMoments(Protocol):
    """A prediction of numbers: of real ones or counts."""

    @property
    def mean(self) -> Tensor:
        """Expected target."""
        ...

    @property
    def std(self) -> Tensor:
        """Standard deviation of the target."""
        ...


def widths(prediction: WithMoments, scaled: bool) -> Float[Tensor, "*batch c"]:
    """The standard deviations of a prediction, float64, or ones.

    Raises:
        UnsupportedError: If they are infinite, as with Student-t noise of few degrees of freedom.
    """
    if not scaled:
        return torch.ones_like(wide(prediction.mean))
    found = wide(prediction.std)
    if not bool(found.isfinite().all()):
        expected = "finite standard deviations, for intervals in units of them"
        raise UnsupportedError(expected, "infinite ones", "ConformalIntervals(scaled=False)")
    return found


def real(prediction: Predictive) -> WithMoments:
    """A prediction of real targets.

    Raises:
        UnsupportedError: If it is of something else.
    """
    if not isinstance(prediction, WithMoments):
        got = type(prediction).__name__
        raise UnsupportedError(
            "predictions with a mean and a standard deviation, for intervals", got, "ConformalSets()"
        )
    return prediction
