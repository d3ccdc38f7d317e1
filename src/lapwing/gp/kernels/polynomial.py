"""Kernels of functions that are constant or linear."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.gp.kernels.base import FeatureMap, Kernel, Positive, check_dimensions, like
from lapwing.ground import probes


@final
@dataclass(frozen=True)
class Linear(Kernel):
    """``Σ_j x_j x'_j / ψ_j²``: linear functions through the origin, with slopes of standard deviation ``1 / ψ``.

    Args:
        lengthscale: ψ, in the units of the inputs over those of the function: one, or one a dimension.

    Example:
        >>> Linear(2.0)(torch.ones(1, 2), torch.ones(1, 2))
        tensor([[0.5000]])
    """

    names = ("lengthscale",)
    lengthscale: Positive = 1.0

    def __call__(self, a: Float[Tensor, "n p"], b: Float[Tensor, "m p"]) -> Float[Tensor, "n m"]:
        """See ``Kernel``."""
        check_dimensions(self, a, b)
        scale = like(self.lengthscale, a)
        return (a / scale) @ (b / scale).mT

    def diagonal(self, x: Float[Tensor, "n p"]) -> Float[Tensor, " n"]:
        """See ``Kernel``."""
        return (x / like(self.lengthscale, x)).square().sum(1)

    def features(self, count: int, x: Float[Tensor, "n p"], generator: torch.Generator) -> FeatureMap:
        """Projections on random directions."""
        directions = probes.gaussian([x.shape[1], count], like=x, generator=generator) / count**0.5
        return lambda inputs: (inputs / like(self.lengthscale, inputs)) @ directions


@final
@dataclass(frozen=True)
class Constant(Kernel):
    """``k = 1``: an unknown offset, the same everywhere; ``0.1 * Constant()`` has variance 0.1.

    Example:
        >>> Constant()(torch.zeros(1, 2), torch.ones(2, 2))
        tensor([[1., 1.]])
    """

    def __call__(self, a: Float[Tensor, "n p"], b: Float[Tensor, "m p"]) -> Float[Tensor, "n m"]:
        """See ``Kernel``."""
        return a.new_ones(a.shape[0], b.shape[0])

    def diagonal(self, x: Float[Tensor, "n p"]) -> Float[Tensor, " n"]:
        """Ones."""
        return x.new_ones(x.shape[0])

    def features(self, count: int, x: Float[Tensor, "n p"], generator: torch.Generator) -> FeatureMap:
        """Random signs, the same for all inputs."""
        signs = probes.rademacher([count], like=x, generator=generator) / count**0.5
        return lambda inputs: signs.expand(len(inputs), -1)
