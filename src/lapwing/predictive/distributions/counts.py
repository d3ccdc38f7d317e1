"""Counts at each position, given rates that are uncertain: by Poisson's law, or more spread out than that."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.quasirandom import SobolEngine

from lapwing import metrics
from lapwing.ground import probes
from lapwing.ground.data.checks import check_whole_counts
from lapwing.ground.errors import check_fraction
from lapwing.ground.precision import at_least_single, wide
from lapwing.metrics.score_table import Scores
from lapwing.moments.outputs import Moments
from lapwing.moments.wide import Outputs
from lapwing.predictive.count_densities import log_density
from lapwing.predictive.distributions.base import Predictive, check_one_an_output, plus_diagonal
from lapwing.predictive.joint_count_densities import log_density_together
from lapwing.predictive.quadrature import sobol_normals
from lapwing.predictive.quantiles import count_cdf, count_quantile

COUNT_DRAWS = 512
"""Values of the rates behind the density of the counts of several outputs: a power of two, for Sobol points."""


@dataclass(frozen=True, eq=False, repr=False)
class CountsOfRates(Predictive, abc.ABC):
    """Counts whose rate e^f is uncertain; what they are given their rate is the subclass's.

    Args:
        log_rates: What is known of the outputs f.
        rates: What is known of the rates e^f; of outputs too many for a covariance a position, of each rate by itself.
    """

    epistemic_unit = "log rates"

    log_rates: Outputs
    rates: Outputs

    @property
    def latent(self) -> Outputs:
        """See ``Predictive.latent``: the log rates."""
        return self.log_rates

    @property
    def mean(self) -> Float[Tensor, "*batch c"]:
        """Expected count, the expected rate E e^f, ``[n, *event, c]``."""
        return self.rates.mean

    @property
    def covariance(self) -> Tensor:
        """Covariance of the counts by the law of total variance: that of the rates, and the noise on the diagonal.

        Raises:
            TooLargeError: If there are too many outputs for it.
        """
        return plus_diagonal(self.log_rates.exponential_covariance(cast(Any, self.rates)), self.noise_variance)

    @property
    def variance(self) -> Float[Tensor, "*batch c"]:
        """Variance of the counts, ``[n, *event, c]``."""
        return self.rates.variance + self.noise_variance

    @property
    def std(self) -> Float[Tensor, "*batch c"]:
        """Standard deviation of the counts, ``[n, *event, c]``."""
        return self.variance.sqrt()

    @property
    def uncertainty(self) -> Float[Tensor, "*batch"]:
        """Summed standard deviations of the counts, ``[n, *event]``."""
        return self.std.sum(-1)

    @property
    @abc.abstractmethod
    def noise_variance(self) -> Float[Tensor, "*batch c"]:
        """Expected variance of a count given its rate, ``[n, *event, c]``."""

    @abc.abstractmethod
    def log_prob_given(
        self, targets: Float[Tensor, "*batch c"], log_rates: Float[Tensor, "*more c"]
    ) -> Float[Tensor, "*more c"]:
        """Log probability of counts given their log rates, nats."""

    @abc.abstractmethod
    def share_below(self, counts: Float[Tensor, " m"], rates: Float[Tensor, "k m"]) -> Float[Tensor, "k m"]:
        """P(y ≤ k) given a rate, float64."""

    @abc.abstractmethod
    def drawn_given(
        self, rates: Float[Tensor, "k *batch c"], generator: torch.Generator | None
    ) -> Float[Tensor, "k *batch c"]:
        """Counts drawn at these rates."""

    def log_prob(
        self, targets: Float[Tensor, "*batch c"], *, generator: torch.Generator | None = None
    ) -> Float[Tensor, " m"]:
        """See ``Predictive.log_prob``: of one output an integral, of several an average over quasi-random rates.

        The points are about the rates that the counts make likely; no count depends on what it is asked for with. Of
        outputs too many for a covariance they are of the prediction alone: counts that tell their rates far better
        than it does have too small a density.

        Raises:
            DataError: If targets are no counts.
            ShapeError: If they have another shape than the outputs.
        """
        log_rates = self.log_rates
        check_one_an_output(targets, log_rates.mean)
        check_whole_counts(targets, "a density of counts")
        if log_rates.sampled:
            return self._averaged(targets, log_rates.draws(COUNT_DRAWS))
        if log_rates.mean.shape[-1] == 1:
            (mean,), (variance,) = log_rates.components()
            exact = log_density(wide(targets).flatten(), mean, variance, self.log_prob_given)
            return exact.to(at_least_single(log_rates.mean).dtype)
        marginal = log_rates.marginal()
        if isinstance(marginal, Moments):
            counts, mean, root = (wide(each) for each in (targets, marginal.mean, marginal.root()))
            together = log_density_together(
                counts.flatten(0, -2), mean.flatten(0, -2), root.flatten(0, -3), self.log_prob_given, points=COUNT_DRAWS
            )
            return together.to(at_least_single(log_rates.mean).dtype)
        if not marginal.dimensions:
            return self._averaged(targets, marginal.mean[None])
        if marginal.dimensions > SobolEngine.MAXDIM:
            return self._averaged(targets, marginal.sample(COUNT_DRAWS, generator=generator))
        moved = marginal.coloured(sobol_normals(COUNT_DRAWS, marginal.dimensions).to(marginal.mean))
        return self._averaged(targets, marginal.mean + moved.movedim(-1, 0))

    def _averaged(
        self, targets: Float[Tensor, "*batch c"], log_rates: Float[Tensor, "k *batch c"]
    ) -> Float[Tensor, " m"]:
        """Log of the mean probability of the counts of each position together, over values of its log rates."""
        each = self.log_prob_given(targets, log_rates).sum(-1)
        return torch.logsumexp(each, dim=0).flatten() - math.log(len(log_rates))

    def score_terms(
        self, targets: Float[Tensor, "*batch c"], *, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """See ``Predictive.score_terms``."""
        return {
            "log_prob": self.log_prob(targets, generator=generator),
            "targets": targets,
            "mean": self.mean,
            "inside": self.inside(targets),
        }

    @classmethod
    def scores_of(cls, terms: Mapping[str, Tensor]) -> Scores:
        """NLL, of all counts of a position together, RMSE, and the coverage of the 95 % intervals."""
        return Scores(
            {
                "nll": float(-wide(terms["log_prob"]).mean()),
                "rmse": metrics.rmse(terms["mean"], terms["targets"]),
                "picp": float(wide(terms["inside"]).mean()),
            }
        )

    def inside(self, targets: Float[Tensor, "*batch c"], level: float = 0.95) -> Float[Tensor, "*batch c"]:
        """1 for counts in their central interval, else 0: two shares each, where the interval takes a search."""
        reached = self.cdf(targets) >= 0.5 * (1 - level)
        not_passed = self.cdf(targets - 1) < 0.5 * (1 + level)
        return (reached & not_passed).to(targets)

    def cdf(self, counts: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch c"]:
        """P(y ≤ k) of each count by itself, float64, ``[n, *event, c]``."""
        shares = count_cdf(self.log_rates, counts.clamp_min(0), self.share_below)
        return shares.where((counts >= 0).to(shares.device), 0.0)

    def interval(
        self, level: float = 0.95, *, noise: bool = True
    ) -> tuple[Float[Tensor, "*batch c"], Float[Tensor, "*batch c"]]:
        """Central interval that holds the count with the given probability, or a little more: counts are whole.

        Its ends are the smallest counts k with P(y ≤ k) of (1 - level)/2 and (1 + level)/2, at least.

        Args:
            level: Probability, between 0 and 1.
            noise: Whether of the counts; without it the interval is the rate's.

        Returns:
            Lower and upper ends, ``[n, *event, c]`` each.

        Raises:
            ConfigError: If ``level`` is not between 0 and 1.

        Cost:
            See ``count_quantile``.

        Example:
            >>> from lapwing.moments import Moments
            >>> certain = Moments.certain(torch.zeros(1, 1))  # rates of 1
            >>> low, high = Counts.of(certain).interval(0.95)
            >>> low.item(), high.item()
            (0.0, 3.0)
        """
        check_fraction("level", level, "level=0.95")
        lower_tail = 0.5 * (1 - level)
        upper_tail = 0.5 * (1 + level)
        if not noise:
            return self.log_rates.quantile(lower_tail).exp(), self.log_rates.quantile(upper_tail).exp()
        low = count_quantile(self.log_rates, self.mean, self.std, lower_tail, self.share_below)
        high = count_quantile(self.log_rates, self.mean, self.std, upper_tail, self.share_below)
        return low, high

    def sample(
        self, k: int, *, noise: bool = True, generator: torch.Generator | None = None
    ) -> Float[Tensor, "k *batch c"]:
        """Drawn counts ``[k, n, *event, c]``, or rates unless ``noise``; see ``Regression.sample``."""
        rates = self.log_rates.sample(k, generator=generator).exp()
        if not noise:
            return rates
        return self.drawn_given(rates, generator)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Counts(CountsOfRates):
    """Counts by Poisson's law whose rate e^f is uncertain; see ``CountsOfRates``.

    Example:
        >>> from lapwing.moments import Moments
        >>> Counts(Moments.certain(torch.zeros(1, 1)), Moments.certain(torch.ones(1, 1))).variance
        tensor([[1.]])
    """

    @classmethod
    def of(cls, outputs: Outputs) -> Counts:
        """The counts of uncertain log rates, in closed form."""
        return cls(outputs, outputs.exponential("rates"))

    @property
    def noise_variance(self) -> Float[Tensor, "*batch c"]:
        """See ``CountsOfRates.noise_variance``: the mean."""
        return self.mean

    def log_prob_given(
        self, targets: Float[Tensor, "*batch c"], log_rates: Float[Tensor, "*more c"]
    ) -> Float[Tensor, "*more c"]:
        """See ``CountsOfRates.log_prob_given``: y f - e^f - log y!."""
        return targets * log_rates - log_rates.exp() - torch.lgamma(targets + 1)

    def share_below(self, counts: Float[Tensor, " m"], rates: Float[Tensor, "k m"]) -> Float[Tensor, "k m"]:
        """See ``CountsOfRates.share_below``: Q(k + 1, e^f), the regularised upper incomplete gamma function."""
        return torch.special.gammaincc((counts + 1).expand_as(rates), rates)

    def drawn_given(
        self, rates: Float[Tensor, "k *batch c"], generator: torch.Generator | None
    ) -> Float[Tensor, "k *batch c"]:
        """See ``CountsOfRates.drawn_given``."""
        return probes.poisson(rates, generator=generator)
