"""Kernels of the distance between inputs, and functions that repeat."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.errors import check_option
from lapwing.methods.gp.kernels import ALL, Entries, Features, Kernel, Positive, check_dimensions, like

LN2 = math.log(2)
"""Powers of two are computed faster than those of e: distances are measured so that they serve."""

LOST = 1e-4
"""Rounding that squared distances may have, in squared length-scales."""


@dataclass(frozen=True)
class Stationary(Kernel):
    """A kernel of the distance ``r = |(x - x') / ψ|``, with k = 1 at 0.

    Args:
        lengthscale: ψ, in the units of the inputs: one for all dimensions, or one a dimension.
    """

    names = ("lengthscale",)
    lengthscale: Positive = 1.0

    def between(self, a: Float[Tensor, "n p"], b: Float[Tensor, "m p"]) -> Entries:
        """See ``Kernel``."""
        check_dimensions(self, a, b)
        squares = squared_distances(a, b, like(self.lengthscale, a) / self.stretch)
        return lambda i, j: self.profile(squares(i, j))

    def diagonal(self, x: Float[Tensor, "n p"]) -> Float[Tensor, " n"]:
        """Ones."""
        return x.new_ones(len(x))

    @property
    @abc.abstractmethod
    def stretch(self) -> float:
        """By how much distances are multiplied before ``profile`` sees them."""

    @abc.abstractmethod
    def profile(self, squares: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
        """K of stretched squared distances, which are overwritten: few passes, for each costs every entry."""

    @abc.abstractmethod
    def derivative(self, squares: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
        """The derivative of K in stretched squared distances, which are overwritten."""

    def gradient(
        self, a: Float[Tensor, "n p"], b: Float[Tensor, "m p"], weight: Float[Tensor, "n m"]
    ) -> Float[Tensor, " h"]:
        """``-2 Σ_ij P_ij (x_i - x_j)² / ψ²`` for each dimension, ``P = W ∘ ∂K``, by products with P alone."""
        scale, centre = like(self.lengthscale, a) / self.stretch, b.mean(0)
        found = self.derivative(squared_distances(a, b, scale)(ALL, ALL)).mul_(weight)
        a, b = (a - centre) / scale, (b - centre) / scale
        own = (found.sum(1)[:, None] * a.square()).sum(0) + (found.sum(0)[:, None] * b.square()).sum(0)
        slopes = -2 * (own - 2 * (a * (found @ b)).sum(0)).double().cpu()
        return slopes if scale.numel() == len(slopes) else slopes.sum()[None]

    @abc.abstractmethod
    def frequencies(self, count: int, x: Float[Tensor, "n p"], generator: torch.Generator) -> Float[Tensor, "p D"]:
        """Draws from the spectral measure at ψ = 1."""

    def features(self, count: int, x: Float[Tensor, "n p"], generator: torch.Generator) -> Features:
        """``φ_l(x) = √(2/D) cos(ω_l·x + τ_l)`` (Antorán 2024, equation 2.4)."""
        frequencies = self.frequencies(count, x, generator)
        turns = 2 * math.pi * torch.rand(count, generator=generator, dtype=torch.float64).to(x)
        scale = like(self.lengthscale, x)

        def draw(inputs: Tensor) -> Tensor:
            return (2 / count) ** 0.5 * torch.cos((inputs / scale) @ frequencies + turns)

        return draw


@final
@dataclass(frozen=True)
class RBF(Stationary):
    """The squared exponential kernel ``exp(-r²/2)``: functions with all derivatives (Antorán 2024, equation 2.20).

    Args:
        lengthscale: ψ, in the units of the inputs: one for all dimensions, or one a dimension.

    Example:
        >>> RBF(2.0)(torch.zeros(1, 1), torch.tensor([[2.0]]))
        tensor([[0.6065]])
    """

    @property
    def stretch(self) -> float:
        """``√(½ / ln 2)``."""
        return (0.5 / LN2) ** 0.5

    def profile(self, squares: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
        """``2^-s``."""
        return torch.neg(squares, out=_spare(squares)).exp2_()

    def derivative(self, squares: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
        """``-ln 2`` times K."""
        return self.profile(squares).mul_(-LN2)

    def frequencies(self, count: int, x: Float[Tensor, "n p"], generator: torch.Generator) -> Float[Tensor, "p D"]:
        """Normal."""
        return probes.gaussian([x.shape[1], count], like=x, generator=generator)


@final
@dataclass(frozen=True)
class Matern(Stationary):
    """The Matérn kernel: functions with ``ν - ½`` derivatives.

        exp(-r),   (1 + √3 r) exp(-√3 r),   (1 + √5 r + 5 r²/3) exp(-√5 r)        for ν = ½, 3/2, 5/2

    Args:
        lengthscale: ψ, in the units of the inputs: one for all dimensions, or one a dimension.
        smoothness: ν: 0.5, 1.5 or 2.5.

    Raises:
        ConfigError: If ν is another, or a length-scale is not positive.

    Example:
        >>> Matern((1.0, 2.0), smoothness=0.5)(torch.zeros(1, 2), torch.tensor([[0.0, 2.0]]))
        tensor([[0.3679]])
    """

    smoothness: float = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_option("smoothness", self.smoothness, (1.5, 0.5, 2.5))

    @property
    def stretch(self) -> float:
        """``√(2ν) / ln 2``."""
        return (2 * self.smoothness) ** 0.5 / LN2

    def profile(self, squares: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
        """``exp(-r)`` times 1, ``1 + r``, or ``1 + r + r²/3``, of distances r ln 2."""
        return _matern(self.smoothness, squares)

    def derivative(self, squares: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
        """The kernel of ``ν - 1``, up to a factor; ``-½ ln 2 exp(-r) / r`` for ½."""
        if self.smoothness == 0.5:
            inverse = squares.clamp_min(torch.finfo(squares.dtype).eps).rsqrt_()  # what it multiplies is 0 there
            return inverse.mul_(self.profile(squares)).mul_(-LN2 / 2)
        factor = -(LN2**2) / (2 if self.smoothness == 1.5 else 6)
        return _matern(self.smoothness - 1, squares).mul_(factor)

    def frequencies(self, count: int, x: Float[Tensor, "n p"], generator: torch.Generator) -> Float[Tensor, "p D"]:
        """Student's t with 2ν degrees of freedom, its divisor shared by the dimensions of a frequency."""
        degrees = round(2 * self.smoothness)
        normal = probes.gaussian([x.shape[1], count], like=x, generator=generator)
        chi_square = probes.gaussian([degrees, count], like=x, generator=generator).square().sum(0)
        return normal * (degrees / chi_square).sqrt()


@final
@dataclass(frozen=True)
class Periodic(Kernel):
    """``exp(-2 Σ_j sin²(π (x_j - x'_j) / T) / ψ²)``: functions that repeat with period T in every dimension.

    It is the squared exponential kernel of ``(cos 2πx/T, sin 2πx/T)``, and has its random features.

    Args:
        period: T, in the units of the inputs.
        lengthscale: ψ, without a unit.

    Example:
        >>> Periodic(3.0)(torch.zeros(1, 1), torch.tensor([[6.0]]))
        tensor([[1.]])
    """

    names = ("period", "lengthscale")
    period: Positive = 1.0
    lengthscale: Positive = 1.0

    def between(self, a: Float[Tensor, "n p"], b: Float[Tensor, "m p"]) -> Entries:
        """See ``Kernel``."""
        check_dimensions(self, a, b)
        return RBF(self.lengthscale).between(self._wound(a), self._wound(b))

    def diagonal(self, x: Float[Tensor, "n p"]) -> Float[Tensor, " n"]:
        """Ones."""
        return x.new_ones(len(x))

    def features(self, count: int, x: Float[Tensor, "n p"], generator: torch.Generator) -> Features:
        """See ``Kernel``."""
        inner = RBF(self.lengthscale).features(count, self._wound(x), generator)
        return lambda inputs: inner(self._wound(inputs))

    def _wound(self, x: Tensor) -> Tensor:
        angle = 2 * math.pi * x / like(self.period, x)
        return torch.cat([angle.cos(), angle.sin()], 1)


def _matern(smoothness: float, squares: Tensor) -> Tensor:
    """See ``Matern.profile``."""
    r = squares.sqrt() if squares.requires_grad else squares.rsqrt().mul_(squares)  # √s has a finite derivative
    decay = torch.neg(r, out=_spare(squares)).exp2_()
    if smoothness == 0.5:
        return decay
    factor = r if smoothness == 1.5 else torch.addcmul(r, r, r, value=LN2 / 3)
    return torch.addcmul(decay, factor, decay, value=LN2, out=_spare(decay))


def _spare(values: Tensor) -> Tensor | None:
    """A block that may be overwritten, where no derivative needs it."""
    return None if values.requires_grad else values


def squared_distances(a: Float[Tensor, "n p"], b: Float[Tensor, "m p"], scale: Tensor | float = 1.0) -> Entries:
    """``|(a_i - b_j) / ψ|²`` by a matrix product ``[-2 a, |a|², 1] [b, 1, |b|²]ᵀ``, around the mean of b.

    The mean keeps rounding to that of the spread; where single precision would lose more than ``LOST``, the product is
    in double. It is not quite 0 where they coincide, so that its root has a derivative.
    """
    centre, dtype = b.mean(0), a.dtype
    with torch.no_grad():
        spread = max(float(((x - centre) / scale).square().sum(1).max()) for x in (a, b))
    if torch.finfo(dtype).eps * spread > LOST:
        a, b, centre = a.double(), b.double(), centre.double()
    smallest = torch.finfo(dtype).tiny
    a, b = (a - centre) / scale, (b - centre) / scale
    left = torch.cat([-2 * a, a.square().sum(1, keepdim=True), a.new_ones(len(a), 1)], 1)
    right = torch.cat([b, b.new_ones(len(b), 1), b.square().sum(1, keepdim=True)], 1)
    return lambda i, j: (left[i] @ right[j].mT).to(dtype).clamp_min_(smallest)
