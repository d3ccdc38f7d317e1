"""Counts more spread out than Poisson's, given the logarithm of their mean."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, log
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import DataError
from lapwing.ground.precision import wide
from lapwing.likelihoods.base import check_positive_finite
from lapwing.likelihoods.elementwise import Elementwise, check_counts
from lapwing.moments import Outputs
from lapwing.predictive.distributions import OverdispersedCounts
from lapwing.predictive.distributions.overdispersed import drawn_negative_binomial, negative_binomial_log_prob
from lapwing.predictive.links import Link

LEAST = 1e-6
"""Smallest dispersion that ``calibrated`` looks at."""

MOST = 1e4
"""Largest dispersion that ``calibrated`` looks at."""


@final
@dataclass(frozen=True, repr=False)
class NegativeBinomial(Elementwise):
    """Counts with mean μ = e^f and variance μ + α μ²: Poisson's at rates that vary by themselves.

        p(y | f) = Γ(y + r) / (Γ(r) y!) (r / (r + μ))^r (μ / (r + μ))^y,    r = 1 / α

    The second derivative of the loss depends on the count, so B is the Fisher information, its expectation under the
    model: diag(μ / (1 + α μ)), Poisson's where α μ is small, and never above r. Source: Lawless (1987), "Negative
    binomial and mixed Poisson regression", equations 2.1 and 2.6.

    Args:
        dispersion: α, without unit: the squared relative spread of the rates behind counts of one mean.

    Raises:
        ConfigError: If it is not positive and finite; without dispersion, ``Poisson()``.

    Example:
        >>> likelihood = NegativeBinomial(dispersion=0.5)
        >>> likelihood.mean(torch.zeros(1, 1)), likelihood.hessian(torch.zeros(1, 1))
        (tensor([[1.]]), tensor([[[0.6667]]]))
    """

    hint: ClassVar[str] = "targets with one count an output"
    dispersion: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive_finite("dispersion", self.dispersion, "0.5")

    @property
    def counts(self) -> bool:
        """See ``Likelihood.counts``."""
        return True

    @property
    def calibrates(self) -> bool:
        """See ``Likelihood.calibrates``."""
        return True

    @property
    def spread_is_default(self) -> bool:
        """See ``Likelihood.spread_is_default``."""
        return self.dispersion == type(self).dispersion

    def calibrated(self, outputs: Float[Tensor, "*batch c"], targets: Float[Tensor, "*batch c"]) -> NegativeBinomial:
        """See ``Likelihood.calibrated``: the dispersion of largest likelihood, one for all outputs.

        Raises:
            DataError: If the counts are no more spread out than Poisson's.
        """
        from scipy.optimize import minimize_scalar  # half a second to import

        f = wide(outputs)
        y = wide(targets)
        # The derivative of the log likelihood in α at 0, times two.
        if float(((y - f.exp()).square() - y).sum()) <= 0:
            raise DataError("counts more spread out than Poisson's", "counts that are not", "Poisson()")

        def loss(log_dispersion: float) -> float:
            return -float(negative_binomial_log_prob(y, f, exp(log_dispersion)).sum())

        found: Any = minimize_scalar(loss, bounds=(log(LEAST), log(MOST)), method="bounded", options={"xatol": 1e-6})
        return replace(self, dispersion=exp(float(found.x)))

    def draw(
        self, outputs: Float[Tensor, "*batch c"], *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "*batch c"]:
        """Counts with mean exp(f)."""
        return drawn_negative_binomial(outputs.exp(), self.dispersion, generator)

    def mean(self, outputs: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch c"]:
        """Means exp(f)."""
        return outputs.exp()

    def _nll(self, outputs: Float[Tensor, "*batch c"], targets: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch"]:
        """-Σ_i log p(y_i | f_i) in nats; see ``negative_binomial_log_prob``."""
        return -negative_binomial_log_prob(targets, outputs, self.dispersion).sum(-1)

    def _score(
        self, outputs: Float[Tensor, "*batch c"], targets: Float[Tensor, "*batch c"]
    ) -> Float[Tensor, "*batch c"]:
        """R (y - μ) / (r + μ), as y σ(-η) - r σ(η) with e^η = μ / r."""
        eta = outputs + log(self.dispersion)
        return targets * torch.sigmoid(-eta) - torch.sigmoid(eta) / self.dispersion

    def _diagonal(self, outputs: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch c"]:
        """R μ / (r + μ), as r σ(η): the diagonal of the Fisher information."""
        return torch.sigmoid(outputs + log(self.dispersion)) / self.dispersion

    def _predictive(
        self, outputs: Outputs, link: Link, samples: int, generator: torch.Generator | None
    ) -> OverdispersedCounts:
        return OverdispersedCounts.of(outputs, self.dispersion)

    def _check_targets(self, outputs: Tensor, targets: Tensor) -> None:
        super()._check_targets(outputs, targets)
        check_counts(outputs, targets, "NegativeBinomial")
