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

from lapwing.ground.errors import ConvergenceWarning, NumericalError, warn
from lapwing.ground.precision import wide
from lapwing.ground.progress import Bar
from lapwing.likelihoods import Categorical, Gaussian, Likelihood
from lapwing.posteriors import Posterior, Step
from lapwing.predictive import Link, Moments, WideMoments
from lapwing.predictive.distributions.probabilities import ProbabilitiesOfLogits
from lapwing.predictive.temperature import sharpening_penalty
from lapwing.tuning.held_out.average import nearest_to_average
from lapwing.tuning.held_out.outputs import HeldOut
from lapwing.tuning.held_out.temperature import NEAR, NEAREST, least_temperature
from lapwing.tuning.held_out.trial import CLOSE, ROUNDING, Curve, Found, Trial, difference, least, mean_of
from lapwing.tuning.hyperparameters import Hyperparameters
from lapwing.tuning.method import P
from lapwing.tuning.noise import noise_level
from lapwing.tuning.result import measured_step, step_of, tunes_noise, with_hyperparameters

logger = logging.getLogger(__name__)

CERTAIN = 1e12
"""A prior precision under which the posterior is the network, to the last digit; times that of a noise above 1."""

WEAKEST = 1e-6
"""Factor of the prior precisions beyond which a weaker prior is no advice."""

OTHERWISE = (
    "weights=All() if fewer are uncertain, a structure with larger variances, or looking at the labels: a network that "
    "errs on them so surely is not mended by a prior"
)
"""What to try where no weaker prior helps."""

GIVEN_UP = 1.0
"""Standard errors by which the last precision is worse than the best where no weaker one is solved for."""

TURNS = 3
"""Times that each curve is looked at further, before the best alone is."""

ENOUGH = 3
"""Precisions that are tried, however long each takes."""

DECADES = 2.0
"""Decades that a prior precision moves for real targets, as the standard deviation of a log-normal prior."""

SWITCHED_OFF = 2.0
"""Nats by which real targets must ask for the network alone, which has no error bars: as two standard deviations."""

INFLATED = 1.5
"""Times that expected counts, all together, may grow by the uncertainty of their log rates."""

MEASURED = 2**22
"""Most weights for which the evidence is measured at every precision tried, and not at the best alone."""


@final
@dataclass(frozen=True, eq=False)
class HeldOutSearch(Generic[P]):
    """Minimises the loss of held-out data: of all links on a coarse grid of precisions, then of each by parabolas.

    The links take turns, the best first, each with its best temperature at every precision. Losses that are the same to
    rounding are decided for the first link and the strongest prior. A margin of standard errors would not pay: those of
    few targets are so large that it takes the network alone where the posterior is better.

    Args:
        name: Of the method, for its warnings.
        data: The data, at any factor of the prior precisions.
        links: Links to choose from, for classes.
        noise: Whether a Gaussian likelihood's noise precision is chosen too.
        temperature: Whether a temperature of the logits is chosen too.
        network: Whether the network itself may be chosen, as the posterior of a prior that leaves no uncertainty.
        average: Whether the member nearest to the average of all is taken in place of the best; see
            ``nearest_to_average``. Where each precision is a solve the best is.
        unchanged: What to say where the strongest prior is the best; ``None`` for what suits held-out data.
    """

    name: str
    data: HeldOut[P]
    links: tuple[Link, ...]
    noise: bool = False
    temperature: bool = False
    network: bool = False
    average: bool = False
    unchanged: str | None = None

    def run(self, progress: bool | None) -> P:
        """The posterior of least loss.

        Raises:
            DataError: If there is no target.
            NumericalError: If the loss is nowhere finite.

        Warns:
            ConvergenceWarning: If that is at an end of the range, or worse than the network alone.
        """
        return self.chosen(self.found(progress))

    def chosen(self, found: Found) -> P:
        """The posterior of least loss of what was found, or the nearest to the average of all; see ``run``."""
        best = self._simplest([trial for curve in found.eligible for trial in curve.whole])
        if not math.isfinite(best.loss):
            raise NumericalError("a finite held-out loss", "none at any prior precision", "other bounds=, or float64")
        if found.interrupted:
            said = f"{self.name}: interrupted after {len(found.visited)} precisions: the best of them is taken"
            warn(said, ConvergenceWarning)
        else:
            taken = best
            if self.average and self.data.posterior.exact:
                taken = self._nearest_to_average(found)
            self._judge(found, best, taken)
            best = taken
        error = mean_of(self.data, best.losses).error
        self._tell(best, error)
        return self._result(found, best, error)

    def found(self, progress: bool | None) -> Found:
        """What there is to choose from."""
        found = Found(self._curves())
        most = len(self.data.grid) + self.data.refinements
        with Bar(self.name.lower(), unit="precisions", most=most, progress=progress) as bar:
            try:
                self._coarse(found, bar)
                self._fine(found, bar)
            except KeyboardInterrupt:
                if not found.visited:
                    raise
                found.interrupted = True
        return found

    def weakest_not_rejected(self, found: Found, errors: float = 1.0) -> Trial:
        """The weakest precision that the data do not reject: from the best to it none is worse by ``errors``.

        Losses are compared target by target, those of classes each after a temperature of its own: a precision is
        judged by what it says of one input against another, and not by how sure it is of all of them.

        Args:
            found: What was found along the precisions.
            errors: Standard errors of the mean difference from the best by which a precision is rejected.

        Cost:
            No pass through the network. Where each precision is a solve the answer is one of those tried.
        """
        own = [curve for curve in found.curves if curve.scaled] or found.curves
        at_each = dict[float, list[Trial]]()
        for curve in own:
            for trial in curve.whole:
                at_each.setdefault(trial.log_factor, []).append(trial)
        path = [least(at_each[log_factor]) for log_factor in sorted(at_each, reverse=True)]
        best = least(path)
        weakest = best
        for trial in path[path.index(best) + 1 :]:
            if self._rejects(trial, best, errors):
                return self._weakest_between(found, own, best, (weakest, trial), errors)
            weakest = trial
        return weakest

    def _weakest_between(
        self, found: Found, curves: Sequence[Curve], best: Trial, ends: tuple[Trial, Trial], errors: float
    ) -> Trial:
        """The weakest that is not rejected between one that is not and one that is, by halving."""
        weakest, rejected = ends
        for _ in range(self.data.halvings):
            log_factor = (min(weakest.log_factor, self.data.grid[0]) + rejected.log_factor) / 2
            middle = least(self.trials_at(found, log_factor, self.data.moments(log_factor), curves))
            if self._rejects(middle, best, errors):
                rejected = middle
            else:
                weakest = middle
        return weakest

    def _rejects(self, trial: Trial, best: Trial, errors: float) -> bool:
        """Whether a trial is worse than the best by so many standard errors, or not to be compared."""
        apart = difference(self.data, trial, best)
        worse = apart.value + trial.moving_penalty - best.moving_penalty
        return not math.isfinite(worse) or worse > errors * apart.error

    def _curves(self) -> list[Curve]:
        """One of each link; where no temperature is chosen one more, of the first link, that has one."""
        if not self.data.likelihood.labels:
            return [Curve(link) for link in self.links]
        curves = [Curve(link, scaled=self.temperature) for link in self.links]
        if not self.temperature:
            curves.append(Curve(self.links[0], scaled=True, eligible=False))
        return curves

    def _simplest(self, trials: Sequence[Trial]) -> Trial:
        """Of those as good as the best, to rounding, one of an early link, and then one of a strong prior."""
        return least(self._simplest_first(trials))

    def _simplest_first(self, trials: Sequence[Trial]) -> list[Trial]:
        """Those of early links before others, and of one link those of strong priors."""

        def complexity(trial: Trial) -> tuple[int, float]:
            return self.links.index(trial.link), -trial.log_factor

        return sorted(trials, key=complexity)

    def _nearest_to_average(self, found: Found) -> Trial:
        """See ``nearest_to_average``."""
        trials = [trial for curve in found.eligible for trial in curve.whole if math.isfinite(trial.objective)]
        nearest = nearest_to_average(self.data, self._simplest_first(trials), self._predictions)
        there = self._point(nearest.log_factor, self._moments_of(nearest))
        return there.trial(nearest.link, nearest.temperature)

    def _predictions(self, trial: Trial, temperature: float) -> list[ProbabilitiesOfLogits]:
        """What a trial predicts of each batch at another temperature."""
        return self._point(trial.log_factor, self._moments_of(trial)).predictions(trial.link, temperature)

    def _moments_of(self, trial: Trial) -> Sequence[Moments | WideMoments]:
        """Outputs of each batch at the precision of a trial, which may be the network's."""
        if trial.log_factor <= self.data.grid[0]:
            return self.data.moments(trial.log_factor)
        return [Moments.certain(part.mean) for part in self.data.moments(self.data.grid[0])]

    def _coarse(self, found: Found, bar: Bar) -> None:
        """Try the network, then the grid from strong priors on, until weaker ones no longer help where each is a solve.

        Args:
            found: What is found is added to it.
            bar: Progress.
        """
        for log_factor in self.data.grid:
            moments = self.data.moments(log_factor)
            if not found.visited:
                self._visit_network(found, moments)
            self._visit(found, log_factor, moments, found.curves)
            bar.check()
            bar.update()
            if self._given_up(found.visited) or self._out_of_time(found.visited):
                break

    def _visit_network(self, found: Found, moments: Sequence[Moments | WideMoments]) -> None:
        """Add what the network itself is worth, whose outputs are the means of any moments."""
        certain = [Moments.certain(part.mean) for part in moments]
        found.plain = Point(self.data, self.data.likelihood, 0.0, certain).trial("probit").loss
        certain_precision = CERTAIN * max(1.0, noise_level(self.data.likelihood))
        log_certain = math.log(certain_precision / float(self.data.posterior.prior_precisions.min()))
        if self.network and log_certain > self.data.grid[0]:
            for curve, trial in zip(
                found.curves, self.trials_at(found, log_certain, certain, found.curves), strict=True
            ):
                curve.network = trial

    def _visit(
        self, found: Found, log_factor: float, moments: Sequence[Moments | WideMoments], curves: Sequence[Curve]
    ) -> None:
        """Add to some curves what is found at a precision, and the best of it to what was visited."""
        trials = self.trials_at(found, log_factor, moments, curves)
        for curve, trial in zip(curves, trials, strict=True):
            curve.trials.append(trial)
        found.visited.append(self._simplest([curve.trials[-1] for curve in curves if curve.eligible]))

    def _given_up(self, visited: list[Trial]) -> bool:
        """Whether the last few precisions of the grid were no better than the best before, and the last is rejected."""
        if self.data.patience is None:
            return False
        losses = [trial.objective for trial in visited]
        best = losses.index(min(losses))
        since = len(losses) - 1 - best
        return since >= self.data.patience and self._rejects(visited[-1], visited[best], GIVEN_UP)

    def _out_of_time(self, visited: list[Trial]) -> bool:
        """Whether the seconds are spent, and enough was tried to know which way is better."""
        return len(visited) >= ENOUGH and self.data.exhausted

    def _fine(self, found: Found, bar: Bar) -> None:
        """Look further along one curve after the other, a few times each; then along the best.

        Args:
            found: What is found is added to it.
            bar: Progress.
        """
        for _ in range(self.data.refinements):
            unfinished = [curve for curve in found.eligible if curve.between is not None]
            if not unfinished or self._out_of_time(found.visited):
                return
            turns = len(self.data.grid) + TURNS
            curve = min(unfinished, key=lambda one: (min(len(one.trials), turns), one.lowest))
            log_factor = curve.between
            assert log_factor is not None
            self._visit(found, log_factor, self.data.moments(log_factor), [curve])
            bar.check()
            bar.update()

    def trials_at(
        self, found: Found, log_factor: float, moments: Sequence[Moments | WideMoments], curves: Sequence[Curve]
    ) -> list[Trial]:
        """What is found at a prior precision on each curve, over temperatures or the noise.

        An infinite loss where rounding leaves no variance of the outputs, as under the weakest priors.
        """
        if not self._has_variances(moments):
            return [Trial(log_factor, math.inf, curve.link) for curve in curves]
        point = self._point(log_factor, moments)
        unscaled = point.trial(curves[0].link)
        certain = len(curves) > 1 and found.is_plain(unscaled)
        trials = list[Trial]()
        for curve in curves:
            same = [one for one, other in zip(trials, curves, strict=False) if other.scaled == curve.scaled]
            known = unscaled if curve.link == unscaled.link else None
            if same and certain:
                trials.append(replace(same[0], link=curve.link))  # links read outputs as good as certain alike
            elif curve.scaled:
                start = same[0] if same else min(curve.trials, key=lambda one: one.objective, default=unscaled)
                near = NEAREST if certain else NEAR
                trials.append(point.with_temperature(curve.link, known, start.temperature, near))
            else:
                trials.append(known or point.trial(curve.link))
        return trials

    def _has_variances(self, moments: Sequence[Moments | WideMoments]) -> bool:
        """Whether rounding leaves variances of the outputs of all processes, which go on or pass over together."""
        failed = 0.0
        try:
            for part in moments:
                _ = part.variance
        except NumericalError:
            failed = 1.0
        (failures,) = self.data.added(failed)
        return failures == 0.0

    def _point(self, log_factor: float, moments: Sequence[Moments | WideMoments]) -> Point:
        """The moments of a prior precision, with the best noise where one is chosen."""
        likelihood = self.data.likelihood
        if not isinstance(likelihood, Gaussian) or not tunes_noise(self.data.posterior, self.noise):
            return Point(self.data, likelihood, log_factor, moments)
        noise = noise_factor(self.data, likelihood, moments)
        widened = [part.widened(1 / noise) for part in moments]
        return Point(self.data, likelihood.scaled(noise), log_factor, widened, noise)

    def _judge(self, found: Found, best: Trial, taken: Trial) -> None:
        """Warn where the best is no answer, or it or what is taken adds no uncertainty.

        Args:
            found: What was found.
            best: The posterior of least loss.
            taken: The same, or the nearest to the average of all.
        """
        grid = self.data.grid
        plain = found.plain
        precision = self.data.posterior.prior_precisions * math.exp(best.log_factor) * best.noise
        losses = f"{best.loss:.4g} nats, {plain:.4g} by the network alone"
        certain = max(best.log_factor, taken.log_factor) >= grid[0]
        network = any(curve.network is not None for curve in found.curves)
        if math.isinf(best.moving_penalty):
            said = (
                f"under every prior tried expected counts are more than {INFLATED:g} times those of the network: the "
                f"strongest is taken, a precision of {float(precision.max()):.3g} ({losses}). Try bounds= that reach "
                "stronger priors"
            )
        elif certain and self.unchanged is not None:
            said = self.unchanged
        elif certain:
            said = self._no_added(found, best, taken)
        elif not network and best.loss > plain + ROUNDING * abs(plain):
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

    def _no_added(self, found: Found, best: Trial, taken: Trial) -> str:
        """What is said of the strongest prior where that is the best, or else is taken."""
        strongest = taken
        rank = "the nearest to the average of all"
        if best.log_factor >= self.data.grid[0]:
            strongest = best
            rank = "the best"
        precision = self.data.posterior.prior_precisions * math.exp(strongest.log_factor) * strongest.noise
        losses = f"{strongest.loss:.4g} nats, {found.plain:.4g} by the network alone"
        told = f"the strongest prior tried is {rank}, a precision of {float(precision.max()):.3g} ({losses})"
        if strongest.temperature == 1.0:
            return f"{told}: these data want no added uncertainty. Try the network as it is, or other data"
        return (
            f"{told}: these data want no added uncertainty but temperature scaling, logits divided by "
            f"{strongest.temperature:.3g}. Try baselines.PlainNetwork(model).calibrated(data), which predicts so too, "
            "or other data"
        )

    def _tell(self, best: Trial, error: float) -> None:
        """Log by how many examples the choice was made; where there were more, what would look at them."""
        data = self.data
        link = f" by {best.link}" if self.data.likelihood.labels else ""
        found = f"{best.loss:.4g} ± {error:.2g} nats{link}"
        words = "%s: %d of %d examples in %.0f s, %s at %.3g times the prior precision before%s"
        spent = data.budget.spent
        factor = math.exp(best.log_factor)
        if data.examples == data.given:
            logger.info(words, self.name, data.examples, data.given, spent, found, factor, "")
            return
        hint = f", as seconds={data.budget.seconds:.3g} allows; seconds=None looks at all of them"
        logger.warning(words, self.name, data.examples, data.given, spent, found, factor, hint)

    def _result(self, found: Found, best: Trial, error: float) -> P:
        """The posterior of the best, with what was visited in its trace."""
        steps = [self._step(trial) for trial in found.visited]
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


@final
@dataclass(frozen=True, eq=False)
class Point:
    """The outputs at one prior precision, to be read by any link at any temperature.

    Args:
        data: The held-out data.
        likelihood: p(y | f), with the noise there.
        log_factor: Logarithm of the precisions over those of the start.
        moments: Outputs of each batch.
        noise: Noise precision over that of the start.
    """

    data: HeldOut[Any]
    likelihood: Likelihood
    log_factor: float
    moments: Sequence[Moments | WideMoments]
    noise: float = 1.0

    def trial(self, link: Link, temperature: float = 1.0) -> Trial:
        """What one link finds at one temperature.

        Raises:
            DataError: If there is no target.
        """
        parts = list[Tensor]()
        for part, batch in zip(self.moments, self.data.batches, strict=True):
            losses = self.data.losses(self.likelihood, part, batch.targets, link, temperature)
            parts.append(wide(losses).cpu())
        losses = torch.cat(parts)
        mean = mean_of(self.data, losses)
        penalty = sharpening_penalty(temperature) / mean.targets
        moving_penalty = self._moving_penalty / mean.targets
        return Trial(self.log_factor, mean.value, link, temperature, self.noise, penalty, moving_penalty, losses)

    @property
    def _moving_penalty(self) -> float:
        """What a prior precision costs that is far from that of the start, nats for all targets together.

            k² / (2 · 2²) for real targets, 2 for the network itself; nothing for classes

        for k decades from α₀ to α; of a last layer from the nearest of ``α₀ / ρ₀ · [1 / (ρ Var y), 1]`` to α / ρ, with
        the noise precision ρ found.

        Held-out targets at inputs like those of training hardly tell weak priors apart: the training data determine the
        outputs there, and the noise does the rest. Elsewhere variances grow as the precision falls, without end.

        Weights of the last layer have the units of the targets, as the noise has. What the noise before stood for is
        open: the noise found, or the spread of the targets, or something between. So that is free. For standardised
        targets and a noise of 1 before, the spread makes it the precision before. Weights of the layers below have
        units of their own, and are most of those that share a precision: it is compared as it is.

        No price is enough where the expected counts ``e^(m + v/2)`` are ``INFLATED`` times those of the network: a few
        inputs of large v make them any number, while the likelihood of all others still gains.
        """
        if self.data.likelihood.labels:
            return 0.0
        if self.log_factor > self.data.grid[0]:
            return SWITCHED_OFF
        if self.likelihood.counts and inflation(self.data, self.moments) > INFLATED:
            return math.inf
        if not self.data.posterior.survey.head:
            decades = (self.log_factor + math.log(self.noise)) / math.log(10.0)
            return decades**2 / (2 * DECADES**2)
        weakest_free = -log_spread_over_noise(self.data, self.likelihood, self.moments)
        nearest_free = min(max(self.log_factor, weakest_free), 0.0)
        decades = (self.log_factor - nearest_free) / math.log(10.0)
        return decades**2 / (2 * DECADES**2)

    def predictions(self, link: Link, temperature: float) -> list[ProbabilitiesOfLogits]:
        """What one link predicts of each batch at one temperature."""
        found = list[ProbabilitiesOfLogits]()
        for part in self.moments:
            predicted = self.likelihood.predictive(part, link, temperature=temperature)
            assert isinstance(predicted, ProbabilitiesOfLogits)
            found.append(predicted)
        return found

    def with_temperature(self, link: Link, unscaled: Trial | None, start: float, near: float) -> Trial:
        """What one link finds at its best temperature.

        Args:
            link: The link.
            unscaled: What it found without a temperature; ``None`` where that is not known yet.
            start: The temperature to begin with.
            near: How near it is found, in log T.
        """
        trials = {1.0: unscaled or self.trial(link)}

        def objective(temperature: float) -> float:
            trials[temperature] = self.trial(link, temperature)
            return trials[temperature].objective

        known = {temperature: one.objective for temperature, one in trials.items()}
        least_temperature(objective, known, start, near)
        return min(trials.values(), key=lambda one: one.objective)


def inflation(data: HeldOut[Any], moments: Sequence[Moments | WideMoments]) -> float:
    """Expected counts over those at the mean log rates, ``Σ e^(m + v/2) / Σ e^m``, all together; 1 where none are.

    Args:
        data: The held-out data.
        moments: Log rates of each batch.
    """
    expected = sum(float((wide(part.mean) + wide(part.variance) / 2).exp().sum()) for part in moments)
    likely = sum(float(wide(part.mean).exp().sum()) for part in moments)
    expected, likely = data.added(expected, likely)
    return expected / likely if likely > 0 else 1.0


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


def log_spread_over_noise(
    data: HeldOut[Any], likelihood: Likelihood, moments: Sequence[Moments | WideMoments]
) -> float:
    """Logarithm of the variance of the targets over that of their noise, 0 at least, a mean over the outputs.

    0 where there is no noise of one size, too.

    Args:
        data: The held-out data.
        likelihood: Has the noise precisions.
        moments: Outputs of each batch, which say how targets are shaped.
    """
    if not isinstance(likelihood, Gaussian):
        return 0.0
    targets = list[Tensor]()
    for part, batch in zip(moments, data.batches, strict=True):
        targets.append(wide(likelihood.canonical_targets(part.mean, batch.targets)).flatten(0, -2))
    every = torch.cat(targets)
    counted, *sums = data.added(float(len(every)), *every.sum(0).tolist())
    squares = (every - every.new_tensor(sums) / counted).square().sum(0)
    variances = every.new_tensor(data.added(*squares.tolist())) / counted
    return float((likelihood.precisions(variances) * variances).clamp_min(1.0).log().mean())


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
