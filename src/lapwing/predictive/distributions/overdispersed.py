"""Counts more spread out than Poisson's, at each position, given rates that are uncertain: negative binomial ones."""

from __future__ import annotations

from dataclasses import dataclass
from math import lgamma, log
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from lapwing.ground import probes
from lapwing.ground.precision import wide
from lapwing.moments.wide import Outputs
from lapwing.predictive.distributions.counts import CountsOfRates
from lapwing.predictive.links import LINEAR

STIRLING = 1e3
"""From which Stirling's series is right to the last digit of float64."""


@final
@dataclass(frozen=True, eq=False, repr=False)
class OverdispersedCounts(CountsOfRates):
    """Negative binomial counts of uncertain mean e^f, whose variance given that is e^f + α e^2f; see ``CountsOfRates``.

    Args:
        log_rates: What is known of the outputs f.
        rates: What is known of the means e^f; of outputs too many for a covariance a position, of each by itself.
        dispersion: α, without unit; 0 would be Poisson's.

    Example:
        >>> from lapwing.moments import Moments
        >>> p = OverdispersedCounts.of(Moments.certain(torch.zeros(1, 1)), dispersion=2.0)
        >>> p.mean, p.variance, p.interval(0.95)
        (tensor([[1.]]), tensor([[3.]]), (tensor([[0.]]), tensor([[6.]])))
    """

    dispersion: float

    @classmethod
    def of(cls, outputs: Outputs, dispersion: float) -> OverdispersedCounts:
        """The counts of uncertain log means, in closed form."""
        return cls(outputs, outputs.exponential("rates"), dispersion)

    @property
    def noise_variance(self) -> Float[Tensor, "*batch c"]:
        """See ``CountsOfRates.noise_variance``: E e^f + α E e^2f."""
        return self.mean + self.dispersion * (self.rates.variance + self.mean.square())

    def log_prob_given(
        self, targets: Float[Tensor, "*batch c"], log_rates: Float[Tensor, "*more c"]
    ) -> Float[Tensor, "*more c"]:
        """See ``CountsOfRates.log_prob_given`` and ``negative_binomial_log_prob``."""
        return negative_binomial_log_prob(targets, log_rates, self.dispersion)

    def share_below(self, counts: Float[Tensor, " m"], rates: Float[Tensor, "k m"]) -> Float[Tensor, "k m"]:
        """See ``CountsOfRates.share_below``: 1 - I_q(k + 1, r), the incomplete beta, with r = 1/α.

        Here q = e^f / (r + e^f). That is I_p(r, k + 1) with p = 1 - q, which where α is small has no digits of q.
        """
        from scipy.special import betaincc  # a tenth of a second to import

        r = 1 / self.dispersion
        q = (rates / (r + rates)).cpu().numpy()
        shares = betaincc((counts + 1).cpu().numpy(), r, q)
        return torch.from_numpy(shares).to(rates)

    def drawn_given(
        self, rates: Float[Tensor, "k *batch c"], generator: torch.Generator | None
    ) -> Float[Tensor, "k *batch c"]:
        """See ``CountsOfRates.drawn_given`` and ``drawn_negative_binomial``."""
        return drawn_negative_binomial(rates, self.dispersion, generator)


def negative_binomial_log_prob(
    targets: Float[Tensor, "*batch c"], log_means: Float[Tensor, "*more c"], dispersion: float
) -> Float[Tensor, "*more c"]:
    """``log Γ(y + r)/(Γ(r) y!) + r log(r / (r + μ)) + y log(μ / (r + μ))`` with μ = e^f and r = 1/α, nats.

    With η = f + log α the last two are -r log(1 + e^η) - y log(1 + e^-η), finite for every f. In float64: where
    α is small the terms are far larger than their sum.

    Args:
        targets: Counts y.
        log_means: f.
        dispersion: α.
    """
    r = 1 / dispersion
    y = wide(targets)
    eta = wide(log_means) + log(dispersion)
    ways = log_rising(y, r) - torch.lgamma(y + 1)
    found = ways - r * softplus(eta, threshold=LINEAR) - y * softplus(-eta, threshold=LINEAR)
    return found.to(torch.promote_types(targets.dtype, log_means.dtype)).to(log_means.device)


def log_rising(y: Float[Tensor, "*n"], r: float) -> Float[Tensor, "*n"]:
    """``log Γ(y + r) - log Γ(r)``, of large r by the difference of Stirling's series.

    Args:
        y: At least 0, float64.
        r: Positive.

    Example:
        >>> log_rising(torch.tensor([2.0]).double(), 3.0).exp(), log_rising(torch.ones(1).double(), 1e15).exp()
        (tensor([12.0000], dtype=torch.float64), tensor([1.0000e+15], dtype=torch.float64))
    """
    if r < STIRLING:
        return torch.lgamma(y + r) - lgamma(r)
    x = r + y
    rest = (1 / x - 1 / r) / 12 - ((1 / x) ** 3 - (1 / r) ** 3) / 360
    return (r - 0.5) * torch.log1p(y / r) + y * x.log() - y + rest


def drawn_negative_binomial(
    means: Float[Tensor, "*batch c"], dispersion: float, generator: torch.Generator | None
) -> Float[Tensor, "*batch c"]:
    """Counts of these means: Poisson's at rates that a gamma number of mean 1 and variance α multiplies."""
    multipliers = probes.gamma(means.shape, 1 / dispersion, like=means, generator=generator)
    return probes.poisson(means * multipliers, generator=generator)
