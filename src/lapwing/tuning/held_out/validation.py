"""Choosing prior precision, link and noise by the likelihood of held-out data."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data.sources import Data, Source, Unpack, unpack_for
from lapwing.ground.errors import ConfigError, check_count
from lapwing.posteriors import Posterior
from lapwing.predictive import Link, Moments, check_link
from lapwing.tuning.held_out.budget import Budget, Seconds, check_seconds
from lapwing.tuning.held_out.examples import evenly
from lapwing.tuning.held_out.knowledge import least_not_rejected, with_knowledge
from lapwing.tuning.held_out.outputs import HeldOut, held_out_outputs
from lapwing.tuning.held_out.search import CERTAIN, SWITCHED_OFF, HeldOutSearch, Point, candidates, noises_by_residuals
from lapwing.tuning.held_out.trial import mean_of
from lapwing.tuning.hyperparameters import Hyperparameters
from lapwing.tuning.method import P
from lapwing.tuning.noise import NoiseRule, noise_level, noise_rule_of
from lapwing.tuning.result import measured_step, with_hyperparameters

FACTORS = (1e-6, 1e6)
"""Factors of the prior precisions tried."""

NEAR_ENOUGH = 0.01
"""How near noise precisions are found, relatively: those of a few hundred targets are known to ten per cent."""

NEARBY = (0.9, 1.1)
"""Factors of the prior precisions where only those now are asked for."""


@final
@dataclass(frozen=True, eq=False)
class Validation:
    """Minimises the negative log predictive density of held-out data over one factor for all prior precisions.

    With it the link through which classes are predicted and a temperature of their logits, and for Gaussian likelihoods
    the noise precision. The posterior then predicts so. The network itself is one of those tried, with a temperature:
    the best is, on the held-out data, no worse than temperature scaling. A temperature that sharpens is penalised,
    ``(log T)² / (2 · 0.5²)`` nats beside the log likelihood of all targets where T < 1.

    For real targets a prior precision k decades from the one before costs ``k² / (2 · 2²)`` nats beside the log
    likelihood of all targets, so that where held-out data do not tell weak priors apart, variances far from the data do
    not grow without end. That of a last layer is counted over the noise precision ρ, from the nearest of
    ``α₀ / (ρ₀ Var y)`` to ``α₀ ρ / ρ₀``, whatever the units of the targets. The network itself, with the noise of its
    residuals, costs 2 nats: error bars are left out only where the data ask for it, and the posterior's likelihood is
    lower by 2 nats in all, at most. A prior so weak that expected counts are, all together, more than 1.5 times those
    of the network is not taken, but where the bounds leave no other.

    A few hundred labels hardly tell many of them apart. So where a temperature is chosen, not the best is taken but the
    one whose predictions are nearest to the average of all, each weighted by its likelihood of the held-out data:
    on average over new data that is better. Where each precision is a solve, the best is taken.

    Args:
        data: Held-out data, as for ``fit``.
        unpack: Splits one element of a loader; ``None`` for that of the fit.
        link: As in ``predict``; ``None`` chooses among ``"probit"``, ``"pairwise"`` and ``"qmc"``.
        temperature: Whether to choose a temperature too, by which logits are divided, as temperature scaling does;
            without one the best is taken.
        noise: Whether to choose the noise of a Gaussian likelihood too, that of each output unless they share one.
        bounds: Factors tried, relative to the precisions now; ``None`` for a millionth to a million, and for the
            network itself, whose posterior has a precision of 1e12, times that of a noise above 1.
        examples: Most of them that are looked at, evenly over all; ``None`` for as many as have 2048 positions.
        seconds: Budget: as many of these are looked at as it buys, 64 at least, spread over all of them. ``"auto"`` for
            three times what the fit took, ten seconds at least; ``None`` for all of them. How many they were is in the
            log and in the trace, ``validation_examples``. Where each precision is a solve the default has no end.

    Cost:
        One pass over the held-out data, or over 2048 positions spread evenly over them, or over as many as ``seconds``
        buys, whose Jacobians serve every precision: about one to two predictions. A posterior known by solves solves at
        each precision it tries, from strong priors on until the loss rises: about ten predictions. A noise for each of
        several outputs: the same again, and a fit, about four times.

    Raises:
        ConfigError: If the bounds make no range, there is no such link, or the seconds are no budget.

    Example:
        >>> import torch, lapwing as lw
        >>> generator = torch.Generator().manual_seed(0)
        >>> x = torch.randn(60, 2, generator=generator)
        >>> y = (x[:, 0] + torch.randn(60, generator=generator) > 0).long()
        >>> posterior = lw.Laplace(lw.Categorical()).fit(torch.nn.Linear(2, 2), (x[:30], y[:30]))
        >>> tuned = lw.tune(posterior, lw.Validation((x[30:], y[30:])))
        >>> tuned.trace[-1].validation_nll < 1.0
        True
    """

    data: Source
    unpack: Unpack | None = field(default=None, kw_only=True)
    link: Link | None = field(default=None, kw_only=True)
    temperature: bool = field(default=True, kw_only=True)
    noise: bool = field(default=True, kw_only=True)
    bounds: tuple[float, float] | None = field(default=None, kw_only=True)
    examples: int | None = field(default=None, kw_only=True)
    seconds: Seconds = field(default="auto", kw_only=True)

    def __post_init__(self) -> None:
        low, high = self.bounds or FACTORS
        if not 0 < low < high < math.inf:
            raise ConfigError("bounds 0 < low < high", f"bounds={self.bounds}", "Validation(data)")
        if self.link is not None:
            check_link(self.link)
        if self.examples is not None:
            check_count("examples", self.examples)
        check_seconds(self.seconds)

    def tune(self, posterior: P, progress: bool | None) -> P:
        """The posterior of smallest validation NLL, or nearest to the average of all by their likelihoods.

        Raises:
            DataError: If no target is left.
            NumericalError: If the loss is nowhere finite.

        Warns:
            ConvergenceWarning: If the best is at an end of the bounds, or worse than the network alone.
        """
        data = self._held_out(posterior, self.bounds or FACTORS)
        search = HeldOutSearch(
            "Validation",
            data,
            candidates(posterior, self.link),
            noise=self.noise,
            temperature=self.temperature and posterior.likelihood.labels,
            network=self.bounds is None and self.link != "bridge",
            average=self.temperature and posterior.likelihood.labels,
        )
        found = search.found(progress)
        tuned = search.chosen(found)
        factor = least_not_rejected(search, found, tuned)
        return with_knowledge(tuned, data.batches, held_out=True, factor=factor, progress=progress)

    def noise_rule(self) -> NoiseRule | None:
        """See ``TunesNoise``; held-out residuals as large as predictions say.

        Cost:
            A prediction of the held-out data.
        """
        rule = noise_rule_of(self, self._noises)
        if rule is None:
            return None
        return replace(rule, no_worse=self._no_worse, first=self._residuals, anew=True, tolerance=NEAR_ENOUGH)

    def _noises(self, posterior: Posterior) -> Float[Tensor, " c"]:
        data = self._held_out(posterior, NEARBY)
        return noises_by_residuals(data, posterior.likelihood, data.moments(0.0))

    def _residuals(self, posterior: Posterior) -> Float[Tensor, " c"]:
        """What the residuals of the network alone say of each output's noise."""
        data = self._held_out(posterior, NEARBY)
        certain = [Moments.certain(part.mean) for part in data.moments(0.0)]
        return noises_by_residuals(data, posterior.likelihood, certain)

    def _no_worse(self, tuned: Posterior) -> Posterior:
        """The posterior, or the network with the noise of its held-out residuals where that is better by 2 nats."""
        data = self._held_out(tuned, NEARBY)
        moments = data.moments(0.0)
        certain = [Moments.certain(part.mean) for part in moments]
        residuals = noises_by_residuals(data, tuned.likelihood, certain)
        likelihood = tuned.likelihood.with_own_noises(residuals)
        loss = Point(data, tuned.likelihood, 0.0, moments).trial(tuned.link).loss
        alone = Point(data, likelihood, 0.0, certain).trial(tuned.link)
        plain = alone.loss
        if self.bounds is not None or loss <= plain + SWITCHED_OFF / mean_of(data, alone.losses).targets:
            return tuned
        network = tuned.refitted(likelihood)
        certain_precision = CERTAIN * max(1.0, noise_level(likelihood))
        there = Hyperparameters(torch.full_like(network.prior_precisions, certain_precision), network.scale)
        step = replace(measured_step(network, there), validation_nll=plain, validation_examples=data.examples)
        chosen = with_hyperparameters(network, there, (step,))
        known_at = float(tuned.at_knowledge.prior_precisions.log().mean().exp())
        return with_knowledge(
            chosen, data.batches, held_out=True, factor=min(1.0, known_at / certain_precision), progress=None
        )

    def _held_out(self, posterior: P, bounds: tuple[float, float]) -> HeldOut[P]:
        """The outputs at the held-out data under any factor of the prior precisions within bounds."""
        budget = Budget.of(self.seconds, posterior)
        unpack = unpack_for(self.data, self.unpack, posterior.unpack)
        batches = list(Data(self.data, like=posterior.network.like, unpack=unpack))
        if self.examples is not None:
            batches = list(evenly(batches, self.examples))
        return held_out_outputs(posterior, batches, bounds, budget)
