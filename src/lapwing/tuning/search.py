"""One search over a log-scale: the prior precision, and with it what else predictions need, by the loss they have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, final

from torch import Tensor

from lapwing.ground.data import Batch
from lapwing.ground.errors import ConvergenceWarning, DataError, NumericalError, warn
from lapwing.likelihoods import Categorical, Gaussian
from lapwing.posteriors import ExactPosterior, Posterior, Step
from lapwing.predictive import Link, Moments, held_out_losses
from lapwing.tuning.ascent import vertex
from lapwing.tuning.choices import P, chosen, step, step_of, tunes_noise
from lapwing.tuning.held_out import HeldOut, held_out

TEMPERATURES = (0.05, 20.0)
"""Temperatures tried."""

CLOSE = 0.02
"""Where the search ends: a difference in the logarithm of the precision that no loss can tell."""


ROUNDING = 1e-6
"""Relative difference of losses that is none, in single precision."""


@final
@dataclass(frozen=True)
class Tried:
    """What was found at a prior precision.

    Args:
        log_factor: Logarithm of the precisions over those of the start.
        loss: Mean negative log predictive density, nats.
        link: The link.
        temperature: Its temperature.
        noise: Noise precision over that of the start.
    """

    log_factor: float
    loss: float
    link: Link
    temperature: float = 1.0
    noise: float = 1.0


@final
@dataclass(frozen=True, eq=False)
class Search(Generic[P]):
    """Minimises the loss of held-out data: of all links on a coarse grid of precisions, then of each by parabolas.

    The links take turns, the best first.

    Args:
        name: Of the method, for its warnings.
        links: Links to choose from, for classes.
        noise: Whether a Gaussian likelihood's noise precision is chosen too.
        temperatures: Least and largest temperature to choose, ``None`` for 1.
        bounds: Factors of the prior precisions tried.
    """

    name: str
    links: tuple[Link, ...]
    noise: bool
    temperatures: tuple[float, float] | None
    bounds: tuple[float, float]

    def run(self, posterior: P, batches: Sequence[Batch], bar: Any) -> P:
        """The posterior of least loss.

        Raises:
            DataError: If there is no target.
            NumericalError: If the loss is nowhere finite.

        Warns:
            ConvergenceWarning: If that is at an end of the range, or worse than the network alone.
        """
        data = held_out(posterior, batches, self.bounds)
        found: list[list[Tried]] = []
        for point in data.grid:
            found.append(self._at(data, point, self.links))
            bar.update()
            losses = [least(each).loss for each in found]
            best = losses.index(min(losses))
            if len(found) - 1 - best >= data.patience and losses[-1] > losses[best]:
                break
        curves = [list(curve) for curve in zip(*found, strict=True)]
        tried = [least(each) for each in found]
        for _ in range(data.refinements):
            points = [(curve, point) for curve in curves if (point := between(curve)) is not None]
            if not points:
                break
            curve, point = min(points, key=lambda one: (len(one[0]), least(one[0]).loss))
            curve += self._at(data, point, (curve[0].link,))
            tried.append(curve[-1])
            bar.update()
        winner = least(tried)
        if not math.isfinite(winner.loss):
            raise NumericalError("a finite held-out loss", "none at any prior precision", "other bounds=, or float64")
        self._judge(data, winner, (data.grid[0], data.grid[-1]))
        return self._chosen(data, [*tried, winner])

    def _at(self, data: HeldOut[P], log_factor: float, links: tuple[Link, ...]) -> list[Tried]:
        """The least loss of each link at a prior precision, over temperatures or the noise."""
        moments, likelihood = data.moments(log_factor), data.posterior.likelihood
        noise = self._noise(data, moments) if tunes_noise(data.posterior, self.noise) else 1.0
        if noise != 1.0:
            likelihood = likelihood.scaled(noise)
            moments = [Moments(part.mean, part.covariance / noise) for part in moments]
        found: list[Tried] = []
        for link in links:

            def loss(log_temperature: float, link: Link = link) -> float:
                return mean_loss(likelihood, moments, data.batches, link, math.exp(log_temperature))

            log_temperature = 0.0
            if self.temperatures is not None:
                from scipy.optimize import minimize_scalar  # half a second to import

                low, high = (math.log(value) for value in self.temperatures)
                options = {"xatol": CLOSE, "maxiter": 12}
                found_at: Any = minimize_scalar(loss, bounds=(low, high), method="bounded", options=options)
                log_temperature = float(found_at.x)
            found.append(Tried(log_factor, loss(log_temperature), link, math.exp(log_temperature), noise))
        return found

    def _noise(self, data: HeldOut[P], moments: list[Moments]) -> float:
        """The noise precision of least loss, over that of the start, with the prior's over it fixed: a closed form.

        Covariances scale as ``1 / ν`` where both precisions scale as ν: ``1 / ν = mean (y - f)² / (K + 1/β)``.
        """
        likelihood = data.posterior.likelihood
        assert isinstance(likelihood, Gaussian)
        total, observations = 0.0, 0
        for part, batch in zip(moments, data.batches, strict=True):
            y = likelihood.canonical_targets(part.mean, batch.targets)
            variance = part.variance.double() + 1 / likelihood.precisions(part.mean.double())
            total += float(((y - part.mean).double().square() / variance).sum())
            observations += y.numel()
        return observations / total if total > 0 else 1.0

    def _judge(self, data: HeldOut[P], winner: Tried, ends: tuple[float, float]) -> None:
        likelihood = data.posterior.likelihood
        certain = [Moments.certain(part.mean) for part in data.moments(winner.log_factor)]
        plain = mean_loss(likelihood, certain, data.batches, "probit", 1.0)
        precision = data.posterior.prior_precisions * math.exp(winner.log_factor)
        said = f"{winner.loss:.4g} nats, {plain:.4g} by the network alone"
        if winner.log_factor == ends[0]:
            warn(
                f"{self.name}: the strongest prior tried is the best, a precision of {float(precision.max()):.3g} "
                f"({said}): these data want no added uncertainty. Try the network as it is, or other data",
                ConvergenceWarning,
            )
        elif winner.loss > plain + ROUNDING * abs(plain):
            warn(
                f"{self.name}: its best posterior is worse than the network on the data it judges by ({said}). "
                "Try bounds= that reach stronger priors",
                ConvergenceWarning,
            )
        elif winner.log_factor == ends[1]:
            warn(
                f"{self.name}: the weakest prior tried is the best, a precision of {float(precision.min()):.3g} "
                f"({said}): these data want more uncertainty than that gives. Try bounds= that reach weaker priors",
                ConvergenceWarning,
            )

    def _chosen(self, data: HeldOut[P], tried: list[Tried]) -> P:
        """The posterior of the last of those tried, with all of them in its trace."""
        start, last = data.posterior, tried[-1]
        taken: list[Step] = []
        for one in tried:
            values = start.prior_precisions * math.exp(one.log_factor) * one.noise, start.scale * one.noise
            found = measured(start, *values)
            link, temperature = (one.link, one.temperature) if start.likelihood.labels else (None, None)
            taken.append(replace(found, validation_nll=one.loss, link=link, temperature=temperature))
        near = data.choice(last.log_factor)
        values = start.prior_precisions * math.exp(last.log_factor) * last.noise, start.scale * last.noise
        tuned = chosen(near, *values, tuple(taken))
        return tuned.with_link(last.link, last.temperature)


def candidates(posterior: Posterior, link: Link | None) -> tuple[Link, ...]:
    """The links to choose from: one where it is given, or where the likelihood takes none."""
    if link is not None or not posterior.likelihood.labels:
        return (link or posterior.link,)
    return ("probit", "pairwise", "qmc") if isinstance(posterior.likelihood, Categorical) else ("probit", "qmc")


def least(tried: Sequence[Tried]) -> Tried:
    """The first whose loss is the least, to ``ROUNDING``: the simplest link, the strongest prior."""
    loss = min(one.loss for one in tried)
    return next(one for one in tried if one.loss <= loss + ROUNDING * abs(loss))


def between(tried: list[Tried]) -> float | None:
    """Where to look next: the vertex of a parabola; ``None`` at an end, or where it is ``CLOSE`` to the best."""
    found, best = vertex((one.log_factor, one.loss) for one in tried), min(tried, key=lambda one: one.loss)
    return None if found is None or abs(found[0] - best.log_factor) < CLOSE else found[0]


def mean_loss(
    likelihood: Any, moments: list[Moments], batches: Sequence[Batch], link: Link, temperature: float
) -> float:
    """Mean negative log predictive density of the targets, nats.

    Raises:
        DataError: If there is none.
    """
    total, counted = 0.0, 0
    for part, batch in zip(moments, batches, strict=True):
        losses = held_out_losses(likelihood, part, batch.targets, link, temperature=temperature)
        total += float(losses.double().sum())
        counted += losses.numel()
    if not counted:
        raise DataError(
            "held-out data with a target", "ignored labels alone", "other data, or labels that are not -100"
        )
    return math.inf if math.isnan(total) else total / counted


def measured(posterior: Posterior, precisions: Tensor, scale: Tensor) -> Step:
    """A step of a trace; evidence and effective dimension where they have a closed form."""
    if isinstance(posterior, ExactPosterior):
        return step(posterior, posterior.evidence, precisions, scale)
    return step_of(posterior, None, precisions, scale, None)
