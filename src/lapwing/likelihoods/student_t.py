"""Real targets some of which are far off: noise with heavier tails than a Gaussian's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, sqrt
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ConfigError, DataError
from lapwing.ground.precision import wide
from lapwing.likelihoods.base import check_positive_finite
from lapwing.likelihoods.elementwise import Elementwise
from lapwing.moments import Outputs
from lapwing.predictive.distributions import HeavyTailedRegression
from lapwing.predictive.distributions.heavy_tailed import drawn_student_t
from lapwing.predictive.links import Link
from lapwing.predictive.scale_mixtures import student_t_log_prob

FEWEST = 0.1
"""Fewest degrees of freedom: of fewer, quantiles would be beyond what numbers can be."""

LARGEST = 1e100
"""Largest scale, and the smallest is one over it: squares of them are numbers."""

ROUNDING = 1e-6
"""What is taken for rounding where a scale is calibrated."""

MOST = 1e9
"""Most degrees of freedom: beyond, the noise is Gaussian to the last digit of float32."""


@final
@dataclass(frozen=True, repr=False)
class StudentT(Elementwise):
    """Real targets with Student-t noise, y = f + σ t with ν degrees of freedom: a few may be far off.

        p(y | f) = Γ((ν + 1)/2) / (Γ(ν/2) √(ν π) σ) (1 + (y - f)² / (ν σ²))^(-(ν + 1)/2)

    The second derivative of the loss depends on the target, and is negative where that is further off than √ν σ, so B
    is the Fisher information, its expectation under the model: diag((ν + 1) / ((ν + 3) σ²)). Source: Lange, Little and
    Taylor (1989), "Robust statistical modeling using the t distribution".

    Args:
        df: Degrees of freedom ν, from 0.1 to 1e9: the smaller, the less do targets weigh that are far off. Of 1e9 the
            noise is Gaussian; up to 2 it has no finite variance. It is never chosen for you.
        scale: σ, in the units of y, from 1e-100 to 1e100: of a Gaussian, which ν → ∞ gives, the standard deviation.

    Raises:
        ConfigError: If one is not positive and finite, or is outside of its range.

    Example:
        >>> likelihood = StudentT(df=4.0, scale=1.0)
        >>> likelihood.score(torch.zeros(1, 3), torch.tensor([[1.0, 2.0, 100.0]]))
        tensor([[1.0000, 1.2500, 0.0500]])
    """

    hint: ClassVar[str] = "targets with one number an output"
    real: ClassVar[bool] = True
    df: float = 4.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive_finite("df", self.df, "4.0, or Gaussian() for infinitely many")
        if not FEWEST <= self.df <= MOST:
            raise ConfigError(f"df from {FEWEST:g} to {MOST:g}", f"{self.df:g}", "df=4.0, or Gaussian() for very many")
        check_positive_finite("scale", self.scale, "1.0")
        if not 1 / LARGEST <= self.scale <= LARGEST:
            raise ConfigError(f"a scale from {1 / LARGEST:g} to {LARGEST:g}", f"{self.scale:g}", "targets of size 1")

    @property
    def calibrates(self) -> bool:
        """See ``Likelihood.calibrates``."""
        return True

    @property
    def spread_is_default(self) -> bool:
        """See ``Likelihood.spread_is_default``."""
        return self.scale == type(self).scale

    def calibrated(self, outputs: Float[Tensor, "*batch c"], targets: Float[Tensor, "*batch c"]) -> StudentT:
        """See ``Likelihood.calibrated``: the scale of largest likelihood, one for all outputs, at these ν.

        The loss is convex in log σ. Its derivative is 0 where ``(ν + 1) r² / (ν σ² + r²)`` is 1 on average.

        Raises:
            DataError: If so many residuals are 0 that it is largest at a scale of 0.
        """
        from scipy.optimize import brentq  # half a second to import

        sizes = (wide(targets) - wide(outputs)).abs().flatten()
        largest = float(sizes.max())
        squares = (sizes / (largest or 1.0)).square()
        squares = squares[squares > 0]
        share = len(squares) / len(sizes)
        if share * (self.df + 1) <= 1 + ROUNDING:
            got = f"{1 - share:.0%} of them zero, of which a scale of 0 is the likeliest"
            raise DataError("residuals most of which are not zero", got, "data the network was not trained on")

        def excess(log_scale: float) -> float:
            """By how much that average is above 1, for a scale in units of the largest residual."""
            weighted = (self.df + 1) * squares / (self.df * exp(2 * log_scale) + squares)
            return share * float(weighted.mean()) - 1

        lowest = -1.0
        while excess(lowest) <= 0:
            lowest = 2 * lowest
        found: Any = brentq(excess, lowest, ROUNDING, xtol=1e-12)
        return replace(self, scale=largest * exp(found))

    def draw(
        self, outputs: Float[Tensor, "*batch c"], *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "*batch c"]:
        """Targets f + σ t."""
        return outputs + self.scale * drawn_student_t(outputs.shape, self.df, like=outputs, generator=generator)

    def mean(self, outputs: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch c"]:
        """The outputs themselves."""
        return outputs

    def _nll(self, outputs: Float[Tensor, "*batch c"], targets: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch"]:
        """-Σ_i log p(y_i | f_i) in nats; see ``student_t_log_prob``."""
        return -student_t_log_prob(targets - outputs, self.df, self.scale).sum(-1)

    def _score(
        self, outputs: Float[Tensor, "*batch c"], targets: Float[Tensor, "*batch c"]
    ) -> Float[Tensor, "*batch c"]:
        """(ν + 1) r / (ν σ² + r²): it grows with the residual r up to √ν σ, and falls beyond."""
        ratio = (targets - outputs) / self._unit
        return (self.df + 1) / self._unit * over_one_plus_square(ratio)

    def _diagonal(self, outputs: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch c"]:
        """(ν + 1) / ((ν + 3) σ²): the diagonal of the Fisher information."""
        return torch.full_like(outputs, (self.df + 1) / (self.df + 3) / self.scale**2)

    def noise_precisions(
        self, outputs: Float[Tensor, "*batch c"], targets: Float[Tensor, "*batch c"]
    ) -> Float[Tensor, "*batch c"]:
        """Expected precision of the noise of each target, given it: (ν + 1) / (ν σ² + r²), times the weight.

        Given its precision the noise is Gaussian. Source: Lange, Little and Taylor (1989), as above.
        """
        ratio = (targets - outputs) / self._unit
        return self.weight * self._largest_precision / (1 + ratio.square())

    def second_derivative(
        self, outputs: Float[Tensor, "*batch c"], targets: Float[Tensor, "*batch c"]
    ) -> Float[Tensor, "*batch c"]:
        """That of the loss in each output, (ν + 1) (ν σ² - r²) / (ν σ² + r²)² times the weight: negative far off."""
        ratio = (targets - outputs) / self._unit
        near = 1 / (1 + ratio.square())
        return self.weight * self._largest_precision * near * (2 * near - 1)

    def scale_derivatives(
        self, outputs: Float[Tensor, "*batch c"], targets: Float[Tensor, "*batch c"]
    ) -> tuple[Float[Tensor, "*batch c"], Float[Tensor, "*batch c"], Float[Tensor, "*batch c"]]:
        """Derivatives in log σ of each target's loss, of the score, and of the second derivative.

        With ``z = r / (√ν σ)`` and ``n = 1 / (1 + z²)``: ``1 - (ν + 1)(1 - n)``, ``-2 (ν + 1) z n² / (√ν σ)`` and
        ``(ν + 1) / (ν σ²) n ((1 - n)(8 n - 2) - 2 (2 n - 1))``, each times the weight.
        """
        ratio = (targets - outputs) / self._unit
        near = 1 / (1 + ratio.square())
        damped = over_one_plus_square(ratio)
        far = ratio * damped
        of_loss = 1 - (self.df + 1) * far
        of_score = -2 * (self.df + 1) / self._unit * damped * near
        of_second = self._largest_precision * near * (far * (8 * near - 2) - 2 * (2 * near - 1))
        return self.weight * of_loss, self.weight * of_score, self.weight * of_second

    def _predictive(
        self, outputs: Outputs, link: Link, samples: int, generator: torch.Generator | None
    ) -> HeavyTailedRegression:
        return HeavyTailedRegression(outputs, self.df, self.scale)

    @property
    def _unit(self) -> float:
        """√ν σ: up to this residual the loss is convex."""
        return sqrt(self.df) * self.scale

    @property
    def _largest_precision(self) -> float:
        """(ν + 1) / (ν σ²): the second derivative of the loss at a residual of 0."""
        return (self.df + 1) / self.df / self.scale**2


def over_one_plus_square(ratio: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """``z / (1 + z²)``, whose square does not overflow."""
    far = ratio.abs() > 1
    large = torch.where(far, ratio, 1.0)
    small = torch.where(far, 1 / large, ratio)
    return small / (1 + small.square())
