"""One search over a log-scale: the prior precision, and with it what else predictions need, by the loss they have."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ConvergenceWarning, DataError, NumericalError, warn
from lapwing.ground.precision import wide
from lapwing.ground.progress import Bar
from lapwing.likelihoods import Categorical, Gaussian, Likelihood
from lapwing.posteriors import Posterior, Step
from lapwing.predictive import Link, Moments, WideMoments
from lapwing.tuning.held_out.outputs import HeldOut
from lapwing.tuning.hyperparameters import Hyperparameters
from lapwing.tuning.method import P
from lapwing.tuning.parabola import vertex
from lapwing.tuning.result import measured_step, step_of, tunes_noise, with_hyperparameters

logger = logging.getLogger(__name__)

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

ENOUGH = 3
"""Precisions that are tried, however long each takes."""

MEASURED = 2**22
"""Most weights for which the evidence is measured at every precision tried, and not at the best alone."""

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
        unchanged: What to say where the strongest prior is the best; ``None`` for what suits held-out data.
    """

    name: str
    data: HeldOut[P]
    links: tuple[Link, ...]
    noise: bool = False
    temperature: bool = False
    unchanged: str | None = None

    def run(self, progress: bool | None) -> P:
        """The posterior of least loss.

        Raises:
            DataError: If there is no target.
            NumericalError: If the loss is nowhere finite.

        Warns:
            ConvergenceWarning: If that is at an end of the range, or worse than the network alone.
        """
        trials = list[Trial]()
        interrupted = False
        most = len(self.data.grid) + self.data.refinements
        with Bar(self.name.lower(), unit="precisions", most=most, progress=progress) as bar:
            try:
                curves = self._coarse(trials, bar)
                self._fine(curves, trials, bar)
            except KeyboardInterrupt:
                if not trials:
                    raise
                interrupted = True
        best = least(trials)
        if not math.isfinite(best.loss):
            raise NumericalError("a finite held-out loss", "none at any prior precision", "other bounds=, or float64")
        if interrupted:
            said = f"{self.name}: interrupted after {len(trials)} precisions: the best of them is taken"
            warn(said, ConvergenceWarning)
        else:
            self._judge(best)
        error = self._error(best)
        self._tell(best, error)
        return self._result(trials, best, error)

    def _coarse(self, trials: list[Trial], bar: Bar) -> list[list[Trial]]:
        """Try the grid, from strong priors on, until weaker ones no longer help where each is a solve.

        Args:
            trials: The best at each precision is added to them.
            bar: Progress.

        Returns:
            Of each link the trials at all precisions.
        """
        curves: list[list[Trial]] = [[] for _ in self.links]
        for log_factor in self.data.grid:
            here = self._at(log_factor, self.links)
            bar.check()
            for curve, trial in zip(curves, here, strict=True):
                curve.append(trial)
            trials.append(least(here))
            bar.update()
            if self._given_up(trials) or self._out_of_time(trials):
                break
        return curves

    def _given_up(self, trials: list[Trial]) -> bool:
        """Whether the last few precisions of the grid were no better than the best before."""
        if self.data.patience is None:
            return False
        losses = [trial.loss for trial in trials]
        best = losses.index(min(losses))
        since = len(losses) - 1 - best
        return since >= self.data.patience and losses[-1] > losses[best]

    def _out_of_time(self, trials: list[Trial]) -> bool:
        """Whether the seconds are spent, and enough was tried to know which way is better."""
        return len(trials) >= ENOUGH and self.data.exhausted

    def _fine(self, curves: list[list[Trial]], trials: list[Trial], bar: Bar) -> None:
        """Try the vertex of the parabola of one link after the other, the one with the fewest trials first.

        Args:
            curves: Of each link its trials, to which others are added.
            trials: The others are added to them too.
            bar: Progress.
        """
        for _ in range(self.data.refinements):
            open_curves = [curve for curve in curves if between(curve) is not None]
            if not open_curves or self._out_of_time(trials):
                return
            curve = min(open_curves, key=lambda one: (len(one), least(one).loss))
            log_factor = between(curve)
            assert log_factor is not None
            (here,) = self._at(log_factor, (curve[0].link,))
            bar.check()
            curve.append(here)
            trials.append(here)
            bar.update()

    def _at(self, log_factor: float, links: tuple[Link, ...]) -> list[Trial]:
        """The least loss of each link at a prior precision, over temperatures or the noise."""
        moments = self.data.moments(log_factor)
        likelihood = self.data.likelihood
        noise = 1.0
        if isinstance(likelihood, Gaussian) and tunes_noise(self.data.posterior, self.noise):
            noise = noise_factor(self.data, likelihood, moments)
            likelihood = likelihood.scaled(noise)
            moments = [part.widened(1 / noise) for part in moments]
        plain = self._plain(moments) if len(links) > 1 and not self.temperature else None
        found = list[Trial]()
        for link in links:
            if found and plain is not None and abs(found[0].loss - plain) <= ROUNDING * abs(plain):
                found.append(replace(found[0], link=link))  # outputs as good as certain are read alike by every link
                continue
            temperature = self._temperature(moments, likelihood, link) if self.temperature else 1.0
            loss = mean_loss(self.data, moments, likelihood, link, temperature)
            found.append(Trial(log_factor, loss, link, temperature, noise))
        return found

    def _temperature(self, moments: Sequence[Moments | WideMoments], likelihood: Likelihood, link: Link) -> float:
        """The temperature of least loss."""
        from scipy.optimize import minimize_scalar  # half a second to import

        def loss(log_temperature: float) -> float:
            return mean_loss(self.data, moments, likelihood, link, math.exp(log_temperature))

        bounds = tuple(math.log(value) for value in TEMPERATURES)
        options = {"xatol": CLOSE, "maxiter": 12}
        found: Any = minimize_scalar(loss, bounds=bounds, method="bounded", options=options)
        return math.exp(float(found.x))

    def _plain(self, moments: Sequence[Moments | WideMoments]) -> float:
        """The loss of the network alone, whose outputs are the means of these moments."""
        certain = [Moments.certain(part.mean) for part in moments]
        return mean_loss(self.data, certain, self.data.likelihood, "probit")

    def _judge(self, best: Trial) -> None:
        """Warn where the best is no answer."""
        grid = self.data.grid
        plain = self._plain(self.data.moments(best.log_factor))
        precision = self.data.posterior.prior_precisions * math.exp(best.log_factor)
        losses = f"{best.loss:.4g} nats, {plain:.4g} by the network alone"
        if best.log_factor == grid[0] and self.unchanged is not None:
            said = self.unchanged
        elif best.log_factor == grid[0]:
            said = (
                f"the strongest prior tried is the best, a precision of {float(precision.max()):.3g} ({losses}): "
                "these data want no added uncertainty. Try the network as it is, or other data"
            )
        elif best.loss > plain + ROUNDING * abs(plain):
            said = (
                f"its best posterior is worse than the network on the data it judges by ({losses}). "
                "Try bounds= that reach stronger priors"
            )
        elif best.log_factor == grid[-1]:
            weaker = best.log_factor > math.log(WEAKEST) + CLOSE
            cure = "bounds= that reach weaker priors" if weaker else OTHERWISE
            said = (
                f"the weakest prior tried is the best, a precision of {float(precision.min()):.3g} ({losses}): these "
                f"data want more uncertainty than that gives. Try {cure}"
            )
        else:
            return
        warn(f"{self.name}: {said}", ConvergenceWarning)

    def _error(self, best: Trial) -> float:
        """Standard error of the least loss, over the targets."""
        moments = self.data.moments(best.log_factor)
        likelihood = self.data.likelihood
        if best.noise != 1.0 and isinstance(likelihood, Gaussian):
            likelihood = likelihood.scaled(best.noise)
            moments = [part.widened(1 / best.noise) for part in moments]
        return standard_error(self.data, moments, likelihood, best)

    def _tell(self, best: Trial, error: float) -> None:
        """Log by how many examples the choice was made; where there were more, what would look at them."""
        data = self.data
        found = f"{best.loss:.4g} ± {error:.2g} nats by {best.link}"
        words = "%s: %d of %d examples in %.0f s, %s at %.3g times the prior precision before%s"
        spent = data.budget.spent
        factor = math.exp(best.log_factor)
        if data.examples == data.given:
            logger.info(words, self.name, data.examples, data.given, spent, found, factor, "")
            return
        hint = f", as seconds={data.budget.seconds:.3g} allows; seconds=None looks at all of them"
        logger.warning(words, self.name, data.examples, data.given, spent, found, factor, hint)

    def _result(self, trials: list[Trial], best: Trial, error: float) -> P:
        """The posterior of the best of some trials, with all of them in its trace."""
        steps = [self._step(trial) for trial in trials]
        last = replace(self._step(best, measured=True), validation_error=error)
        there = self.data.posterior_at(best.log_factor)
        tuned = with_hyperparameters(there, self._hyperparameters(best), (*steps, last))
        return tuned.with_link(best.link, best.temperature)

    def _hyperparameters(self, trial: Trial) -> Hyperparameters:
        """Those of a trial: covariances scale with the noise, the prior's precisions over the noise's as they were."""
        there = self.data.hyperparameters_at(trial.log_factor)
        return Hyperparameters(there.precisions * trial.noise, there.scale * trial.noise)

    def _step(self, trial: Trial, *, measured: bool = False) -> Step:
        """What a trial leaves in the trace; of very many weights without the evidence, unless that is wanted."""
        posterior = self.data.posterior
        there = self._hyperparameters(trial)
        if measured or posterior.network.size <= MEASURED:
            step = measured_step(posterior, there)
        else:
            step = step_of(posterior, there, None, None)
        step = replace(step, validation_nll=trial.loss, validation_examples=self.data.examples)
        if not posterior.likelihood.labels:
            return step
        return replace(step, link=trial.link, temperature=trial.temperature)


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
        variance = wide(part.variance) + 1 / likelihood.precisions(wide(part.mean))
        squares = (wide(y) - wide(part.mean)).square() / variance
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


def noises_by_residuals(
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
    if isinstance(posterior.likelihood, Categorical):
        return "probit", "pairwise", "qmc"
    return "probit", "qmc"


def least(trials: Sequence[Trial]) -> Trial:
    """The first whose loss is the least, to ``ROUNDING``: the simplest link, the strongest prior."""
    loss = min(one.loss for one in trials)
    return next(one for one in trials if one.loss <= loss + ROUNDING * abs(loss))


def between(curve: Sequence[Trial]) -> float | None:
    """Where to look next: the vertex of a parabola; ``None`` at an end, or where it is ``CLOSE`` to the best."""
    best = min(curve, key=lambda trial: trial.loss)
    found = vertex((trial.log_factor, trial.loss) for trial in curve)
    if found is None or abs(found[0] - best.log_factor) < CLOSE:
        return None
    return FINE * round(found[0] / FINE)


def standard_error(
    data: HeldOut[Any], moments: Sequence[Moments | WideMoments], likelihood: Likelihood, best: Trial
) -> float:
    """Standard error of ``mean_loss``, nats: that of the mean of as many targets as there are.

    Args:
        data: The held-out data.
        moments: Outputs of each batch.
        likelihood: p(y | f).
        best: Has the link, the temperature and the mean.
    """
    squares = 0.0
    counted = 0.0
    for part, batch in zip(moments, data.batches, strict=True):
        losses = data.losses(likelihood, part, batch.targets, best.link, best.temperature)
        squares += float((wide(losses) - best.loss).square().sum())
        counted += losses.numel()
    squares, counted = data.added(squares, counted)
    return math.sqrt(squares / (counted - 1) / counted) if counted > 1 else math.inf


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
    total = 0.0
    counted = 0.0
    for part, batch in zip(moments, data.batches, strict=True):
        losses = data.losses(likelihood, part, batch.targets, link, temperature)
        total += float(wide(losses).sum())
        counted += losses.numel()
    total, counted = data.added(total, counted)
    if not counted:
        raise DataError(
            "held-out data with a target", "ignored labels alone", "other data, or labels that are not -100"
        )
    return math.inf if math.isnan(total) else total / counted
