"""One search over a log-scale: the prior precision, and with it what else predictions need, by the loss they have."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ConvergenceWarning, DataError, NumericalError, warn
from lapwing.ground.progress import Bar
from lapwing.likelihoods import Categorical, Gaussian, Likelihood
from lapwing.likelihoods.density import held_out_losses
from lapwing.posteriors import Posterior, Step
from lapwing.predictive import Link, Moments, WideMoments
from lapwing.tuning.choices import P, chosen, measured, tunes_noise
from lapwing.tuning.held_out import HeldOut

TEMPERATURES = (0.05, 20.0)
"""Temperatures tried."""

CLOSE = 0.02
"""Where the search ends: a difference in the logarithm of the precision that no loss can tell."""

FINE = 2**-10
"""Logarithms tried are multiples of this: rounding changes one only at an edge of the grid."""

WEAKEST = 1e-6
"""Factor of the prior precisions beyond which a weaker prior is no advice."""

OTHERWISE = (
    "weights=All() if fewer are uncertain, a structure with larger variances, or looking at the labels: a network that "
    "errs on them so surely is not mended by a prior"
)
"""What to try where no weaker prior helps."""

ROUNDING = 1e-6
"""Relative difference of losses that is none, in single precision."""

PATIENCE = 2
"""Steps to weaker priors, none better than the best before, after which a search by solves gives up."""

REFINEMENTS = 9, 2
"""Most factors tried between those of the grid: three of each link; where every one is a solve."""


def vertex(points: Iterable[tuple[float, float]]) -> tuple[float, float] | None:
    """Of the parabola through the lowest of some points (x, y) and its neighbours: where it is lowest, and how low.

    ``None`` where the lowest point is at an end, or the three do not bend upwards. Where a neighbour is not finite, it
    is halfway to the other, or to one of them, and as low as the lowest point.

    Example:
        >>> vertex([(0.0, 4.0), (3.0, 1.0), (1.0, 1.0)])
        (2.0, 0.0)
    """
    path = sorted(points)
    best = min(range(len(path)), key=lambda i: path[i][1])
    if best in (0, len(path) - 1):
        return None
    (x0, y0), (x1, y1), (x2, y2) = path[best - 1 : best + 2]
    if not math.isfinite(y0 + y2):
        return (x1 + (x0 if math.isfinite(y0) else x2)) / 2, y1
    if not x0 < x1 < x2:
        return None
    down, up = (y1 - y0) / (x1 - x0), (y2 - y1) / (x2 - x1)
    bend = (up - down) / (x2 - x0)
    if bend <= 0:
        return None
    move = (x0 - x1) / 2 - down / (2 * bend)
    return x1 + move, y1 - bend * move**2


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
class HeldOutSearch(Generic[P]):
    """Minimises the loss of held-out data: of all links on a coarse grid of precisions, then of each by parabolas.

    The links take turns, the best first.

    Args:
        name: Of the method, for its warnings.
        data: The data, at any factor of the prior precisions.
        links: Links to choose from, for classes.
        noise: Whether a Gaussian likelihood's noise precision is chosen too.
        temperature: Whether a temperature of the logits is chosen too.
    """

    name: str
    data: HeldOut[P]
    links: tuple[Link, ...]
    noise: bool = False
    temperature: bool = False

    def run(self, progress: bool | None) -> P:
        """The posterior of least loss.

        Raises:
            DataError: If there is no target.
            NumericalError: If the loss is nowhere finite.

        Warns:
            ConvergenceWarning: If that is at an end of the range, or worse than the network alone.
        """
        most = len(self.data.grid) + REFINEMENTS[0 if self.data.exact else 1]
        with Bar(self.name.lower(), unit="precisions", most=most, progress=progress) as bar:
            tried = list[Tried]()
            interrupted = False
            try:
                self._try(tried, bar)
            except KeyboardInterrupt:
                if not tried:
                    raise
                interrupted = True
        winner = least(tried)
        if not math.isfinite(winner.loss):
            raise NumericalError("a finite held-out loss", "none at any prior precision", "other bounds=, or float64")
        if interrupted:
            said = f"{self.name}: interrupted after {len(tried)} precisions: the best of them is taken"
            warn(said, ConvergenceWarning)
        else:
            self._judge(winner)
        return self._chosen([*tried, winner])

    def _plain(self, moments: Sequence[Moments | WideMoments]) -> float:
        """The loss of the network alone, whose outputs are the means of these moments."""
        certain = [Moments.certain(part.mean) for part in moments]
        return mean_loss(self.data, certain, self.data.likelihood, "probit")

    def _try(self, tried: list[Tried], bar: Bar) -> None:
        """Add the best at each precision, in the order in which they are tried."""
        grid, exact = self.data.grid, self.data.exact
        found: list[list[Tried]] = []
        for point in grid:
            here = self._at(point, self.links)
            bar.check()
            found.append(here)
            tried.append(least(here))
            bar.update()
            losses = [one.loss for one in tried]
            best = losses.index(min(losses))
            if not exact and len(found) - 1 - best >= PATIENCE and losses[-1] > losses[best]:
                break
        curves = [list(curve) for curve in zip(*found, strict=True)]
        for _ in range(REFINEMENTS[0 if exact else 1]):
            points = [(curve, point) for curve in curves if (point := between(curve)) is not None]
            if not points:
                break
            curve, point = min(points, key=lambda one: (len(one[0]), least(one[0]).loss))
            here = self._at(point, (curve[0].link,))
            bar.check()
            curve += here
            tried.append(curve[-1])
            bar.update()

    def _at(self, log_factor: float, links: tuple[Link, ...]) -> list[Tried]:
        """The least loss of each link at a prior precision, over temperatures or the noise."""
        moments, likelihood, noise = self.data.moments(log_factor), self.data.likelihood, 1.0
        if isinstance(likelihood, Gaussian) and tunes_noise(self.data.posterior, self.noise):
            noise = noise_factor(self.data, likelihood, moments)
            likelihood = likelihood.scaled(noise)
            moments = [part.widened(1 / noise) for part in moments]
        plain = self._plain(moments) if len(links) > 1 and not self.temperature else None
        found: list[Tried] = []
        for link in links:

            def loss(log_temperature: float, link: Link = link) -> float:
                return mean_loss(self.data, moments, likelihood, link, math.exp(log_temperature))

            if found and plain is not None and abs(found[0].loss - plain) <= ROUNDING * abs(plain):
                found.append(replace(found[0], link=link))  # outputs as good as certain are read alike by every link
                continue
            log_temperature = 0.0
            if self.temperature:
                from scipy.optimize import minimize_scalar  # half a second to import

                low, high = (math.log(value) for value in TEMPERATURES)
                options = {"xatol": CLOSE, "maxiter": 12}
                found_at: Any = minimize_scalar(loss, bounds=(low, high), method="bounded", options=options)
                log_temperature = float(found_at.x)
            found.append(Tried(log_factor, loss(log_temperature), link, math.exp(log_temperature), noise))
        return found

    def _judge(self, winner: Tried) -> None:
        """Warn where the best is no answer."""
        posterior, grid = self.data.posterior, self.data.grid
        plain = self._plain(self.data.moments(winner.log_factor))
        precision = posterior.prior_precisions * math.exp(winner.log_factor)
        losses = f"{winner.loss:.4g} nats, {plain:.4g} by the network alone"
        if winner.log_factor == grid[0]:
            said = (
                f"the strongest prior tried is the best, a precision of {float(precision.max()):.3g} ({losses}): "
                "these data want no added uncertainty. Try the network as it is, or other data"
            )
        elif winner.loss > plain + ROUNDING * abs(plain):
            said = (
                f"its best posterior is worse than the network on the data it judges by ({losses}). "
                "Try bounds= that reach stronger priors"
            )
        elif winner.log_factor == grid[-1]:
            weaker = winner.log_factor > math.log(WEAKEST) + CLOSE
            cure = "bounds= that reach weaker priors" if weaker else OTHERWISE
            said = (
                f"the weakest prior tried is the best, a precision of {float(precision.min()):.3g} ({losses}): these "
                f"data want more uncertainty than that gives. Try {cure}"
            )
        else:
            return
        warn(f"{self.name}: {said}", ConvergenceWarning)

    def _chosen(self, tried: list[Tried]) -> P:
        """The posterior of the last of those tried, with all of them in its trace."""
        start, last = self.data.posterior, tried[-1]
        values = [
            (start.prior_precisions * math.exp(one.log_factor) * one.noise, start.scale * one.noise) for one in tried
        ]
        steps: list[Step] = []
        for one, there in zip(tried, values, strict=True):
            link, temperature = (one.link, one.temperature) if start.likelihood.labels else (None, None)
            step = measured(start, *there)
            steps.append(replace(step, validation_nll=one.loss, link=link, temperature=temperature))
        tuned = chosen(self.data.choice(last.log_factor), *values[-1], tuple(steps))
        return tuned.with_link(last.link, last.temperature)


def squared_residuals(
    data: HeldOut[Any], likelihood: Gaussian, moments: Sequence[Moments | WideMoments]
) -> tuple[Float[Tensor, " c"], float]:
    """Squared residuals over the variances predicted, ``Σ (y - f)² / (K + 1/β)`` of each output; observations of each.

    Args:
        data: The held-out data.
        likelihood: Has the noise precisions β.
        moments: Outputs of each batch.
    """
    sums = list[Tensor]()
    observations = 0
    for part, batch in zip(moments, data.batches, strict=True):
        y = likelihood.canonical_targets(part.mean, batch.targets)
        variance = part.variance.double() + 1 / likelihood.precisions(part.mean.double())
        squares = (y.double() - part.mean.double()).square() / variance
        sums.append(squares.flatten(0, -2).sum(0))
        observations += squares[..., 0].numel()
    each = torch.stack(sums).sum(0)
    *totals, counted = data.added(*each.tolist(), float(observations))
    return each.new_tensor(totals), counted


def noise_factor(data: HeldOut[Any], likelihood: Gaussian, moments: Sequence[Moments | WideMoments]) -> float:
    """The noise precision of least loss, over that of the start, with the prior's over it fixed: a closed form.

    Covariances scale as ``1 / ν`` where both precisions scale as ν: ``1 / ν = mean (y - f)² / (K + 1/β)``.
    """
    squares, observations = squared_residuals(data, likelihood, moments)
    total = float(squares.sum())
    return len(squares) * observations / total if total > 0 else 1.0


def own_noises_of(
    data: HeldOut[Any], likelihood: Likelihood, moments: Sequence[Moments | WideMoments]
) -> Float[Tensor, " c"]:
    """The noise precision of each output by the same closed form, ``β_k / mean (y_k - f_k)² / (K_kk + 1/β_k)``."""
    assert isinstance(likelihood, Gaussian)
    squares, observations = squared_residuals(data, likelihood, moments)
    factors = torch.where(squares > 0, observations / squares, 1.0)
    return likelihood.precisions(factors) * factors


def candidates(posterior: Posterior, link: Link | None) -> tuple[Link, ...]:
    """The links to choose from: one where it is given, or where the likelihood takes none."""
    if link is not None or posterior.wide or not posterior.likelihood.labels:
        return (link or posterior.link,)
    return ("probit", "pairwise", "qmc") if isinstance(posterior.likelihood, Categorical) else ("probit", "qmc")


def least(tried: Sequence[Tried]) -> Tried:
    """The first whose loss is the least, to ``ROUNDING``: the simplest link, the strongest prior."""
    loss = min(one.loss for one in tried)
    return next(one for one in tried if one.loss <= loss + ROUNDING * abs(loss))


def between(tried: list[Tried]) -> float | None:
    """Where to look next: the vertex of a parabola; ``None`` at an end, or where it is ``CLOSE`` to the best."""
    found, best = vertex((one.log_factor, one.loss) for one in tried), min(tried, key=lambda one: one.loss)
    if found is None or abs(found[0] - best.log_factor) < CLOSE:
        return None
    return FINE * round(found[0] / FINE)


def mean_loss(
    data: HeldOut[Any],
    moments: Sequence[Moments | WideMoments],
    likelihood: Likelihood,
    link: Link,
    temperature: float = 1.0,
) -> float:
    """Mean negative log predictive density of the targets of held-out data, nats.

    Raises:
        DataError: If there is none.
    """
    total, counted = 0.0, 0.0
    for part, batch in zip(moments, data.batches, strict=True):
        losses = held_out_losses(likelihood, part, batch.targets, link, temperature=temperature)
        total += float(losses.double().sum())
        counted += losses.numel()
    total, counted = data.added(total, counted)
    if not counted:
        raise DataError(
            "held-out data with a target", "ignored labels alone", "other data, or labels that are not -100"
        )
    return math.inf if math.isnan(total) else total / counted
