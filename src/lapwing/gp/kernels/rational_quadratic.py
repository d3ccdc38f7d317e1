"""The kernel of functions that vary at several scales."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.gp.kernels.base import Positive, like
from lapwing.gp.kernels.distances import SquaredDistances
from lapwing.gp.kernels.stationary import RBF, Stationary
from lapwing.ground import probes
from lapwing.ground.errors import ConfigError
from lapwing.ground.precision import wide


@final
@dataclass(frozen=True)
class RationalQuadratic(Stationary):
    """``(1 + r²/2α)^-α``: squared exponentials of length-scales around ψ (Rasmussen & Williams 2006, equation 4.19).

    It is the mean of ``exp(-τ r²/2)`` over rates τ that have a gamma distribution of shape α and mean 1; a large α is
    the squared exponential kernel.

    Args:
        lengthscale: ψ, in the units of the inputs: one for all dimensions, or one a dimension.
        alpha: α, without a unit: how alike the length-scales are.

    Raises:
        ConfigError: If one is not positive, or α is several numbers.

    Example:
        >>> RationalQuadratic(2.0, alpha=0.5)(torch.zeros(1, 1), torch.tensor([[2.0]]))
        tensor([[0.7071]])
    """

    names = ("lengthscale", "alpha")
    alpha: Positive = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if torch.as_tensor(self.alpha).numel() != 1:
            raise ConfigError("one alpha for all dimensions", f"alpha={self.alpha!r:.40}", "alpha=1.0")

    @property
    def stretch(self) -> float:
        """``√½``."""
        return 0.5**0.5

    def profile(self, squares: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
        """``(1 + s/α)^-α``."""
        alpha = like(self.alpha, squares)
        return torch.exp(-alpha * torch.log1p(squares / alpha))

    def derivative(self, squares: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
        """``-(1 + s/α)^(-α-1)``."""
        alpha = like(self.alpha, squares)
        return -torch.exp(-(alpha + 1) * torch.log1p(squares / alpha))

    def gradient(
        self, a: Float[Tensor, "n p"], b: Float[Tensor, "m p"], weight: Float[Tensor, "n m"]
    ) -> Float[Tensor, " h"]:
        """See ``Kernel``; in log α ``α Σ_ij W_ij k (q / (1 + q) - log(1 + q))``, with ``q = s/α``."""
        slopes = super().gradient(a, b, weight)
        alpha = like(self.alpha, a)
        entries = SquaredDistances.between(a, b, like(self.lengthscale, a) / self.stretch)
        part = entries(slice(None), slice(None)) / alpha
        logarithm = torch.log1p(part)
        each = torch.exp(-alpha * logarithm) * (part / (1 + part) - logarithm)
        own = wide(alpha * weight * each).sum()[None].cpu()
        return torch.cat([slopes, own])

    def weighted_frequencies(
        self, count: int, x: Float[Tensor, "n p"], generator: torch.Generator
    ) -> tuple[Float[Tensor, "p D"], Float[Tensor, " D"]]:
        """Those of a squared exponential kernel, each times the root of a rate of its own."""
        frequencies, weights = RBF().weighted_frequencies(count, x, generator)
        rates = probes.gamma([count], float(torch.as_tensor(self.alpha)), like=frequencies, generator=generator)
        return rates.sqrt() * frequencies, weights
