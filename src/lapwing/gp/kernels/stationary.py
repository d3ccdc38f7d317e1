"""Kernels of the distance between inputs, and functions that repeat."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.gp.kernels.base import ALL, Entries, FeatureMap, Kernel, Positive, check_dimensions, like
from lapwing.gp.kernels.distances import SquaredDistances
from lapwing.ground import probes
from lapwing.ground.errors import check_option
from lapwing.ground.precision import wide
from lapwing.ground.tracing import traced

LN2 = math.log(2)
"""Powers of two are computed faster than those of e: distances are measured so that they serve."""


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
        squares = SquaredDistances.between(a, b, like(self.lengthscale, a) / self.stretch)
        return lambda i, j: self.profile(squares(i, j))

    def diagonal(self, x: Float[Tensor, "n p"]) -> Float[Tensor, " n"]:
        """Ones."""
        return x.new_ones(x.shape[0])

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
        scale = like(self.lengthscale, a) / self.stretch
        squares = SquaredDistances.between(a, b, scale)
        slopes = -2 * wide(squares.weighted(self.derivative(squares(ALL, ALL)).mul_(weight))).cpu()
        return slopes if scale.numel() == len(slopes) else slopes.sum()[None]

    @abc.abstractmethod
    def weighted_frequencies(
        self, count: int, x: Float[Tensor, "n p"], generator: torch.Generator
    ) -> tuple[Float[Tensor, "p D"], Float[Tensor, " D"]]:
        """Frequencies ω of random features at ψ = 1, float64, and their weights w.

        Args:
            count: Features D.
            x: Inputs, for their dimension, dtype and device.
            generator: Source of randomness.
        """

    def features(self, count: int, x: Float[Tensor, "n p"], generator: torch.Generator) -> FeatureMap:
        """``φ_l(x) = √(2 w_l / D) cos(ω_l·x + τ_l)`` (Antorán 2024, equation 2.4, where all weights w are 1)."""
        frequencies, weights = self.weighted_frequencies(count, x, generator)
        turns = 2 * math.pi * torch.rand(count, generator=generator, dtype=torch.float64).to(frequencies)
        amplitudes = (2 * weights / count).sqrt()

        def draw(inputs: Tensor) -> Tensor:
            phases = (wide(inputs) / like(self.lengthscale, frequencies)) @ frequencies + turns
            return (amplitudes * torch.cos(phases)).to(inputs)

        return draw


@dataclass(frozen=True)
class Spectral(Stationary):
    """A stationary kernel with a spectral density to draw from.

    Args:
        lengthscale: ψ, in the units of the inputs: one for all dimensions, or one a dimension.
    """

    @abc.abstractmethod
    def frequencies(self, count: int, x: Float[Tensor, "n p"], generator: torch.Generator) -> Float[Tensor, "p D"]:
        """Draws from the spectral density at ψ = 1."""

    @abc.abstractmethod
    def log_spectral_density(self, frequencies: Float[Tensor, "p D"]) -> Float[Tensor, " D"]:
        """The logarithm of the spectral density at ψ = 1, which integrates to 1."""

    def weighted_frequencies(
        self, count: int, x: Float[Tensor, "n p"], generator: torch.Generator
    ) -> tuple[Float[Tensor, "p D"], Float[Tensor, " D"]]:
        """Half from the spectral density π, half from a Cauchy distribution q, with ``w = π / (½ π + ½ q)``.

        Where data determine the function well, what is left unknown of it has frequencies that π hardly ever draws.
        """
        tails = count // 2
        own_frequencies = self.frequencies(count - tails, x, generator)
        frequencies = wide(torch.cat([own_frequencies, student(1, tails, x, generator)], 1))
        own = self.log_spectral_density(frequencies)
        other = log_student(1, frequencies)
        part = tails / count
        return frequencies, 1 / (1 - part + part * torch.exp(other - own))


@final
@dataclass(frozen=True)
class RBF(Spectral):
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

    def log_spectral_density(self, frequencies: Float[Tensor, "p D"]) -> Float[Tensor, " D"]:
        """Normal."""
        return -0.5 * (frequencies.square().sum(0) + len(frequencies) * math.log(2 * math.pi))


@final
@dataclass(frozen=True)
class Matern(Spectral):
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
        return student(round(2 * self.smoothness), count, x, generator)

    def log_spectral_density(self, frequencies: Float[Tensor, "p D"]) -> Float[Tensor, " D"]:
        """Student's t with 2ν degrees of freedom."""
        return log_student(round(2 * self.smoothness), frequencies)


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
        return x.new_ones(x.shape[0])

    def features(self, count: int, x: Float[Tensor, "n p"], generator: torch.Generator) -> FeatureMap:
        """See ``Kernel``."""
        inner = RBF(self.lengthscale).features(count, self._wound(x), generator)
        return lambda inputs: inner(self._wound(inputs))

    def _wound(self, x: Tensor) -> Tensor:
        period = like(self.period, x)
        angle = 2 * math.pi * (x.remainder(period) / period)  # the remainder is exact, however far away x is
        return torch.cat([angle.cos(), angle.sin()], 1)


def student(degrees: int, count: int, x: Float[Tensor, "n p"], generator: torch.Generator) -> Float[Tensor, "p D"]:
    """Draws from Student's t distribution of several dimensions, those of one draw with the same divisor.

    Args:
        degrees: Of freedom.
        count: Draws D.
        x: Inputs, for their dimension, dtype and device.
        generator: Source of randomness.
    """
    normal = probes.gaussian([x.shape[1], count], like=x, generator=generator)
    chi_square = probes.gaussian([degrees, count], like=x, generator=generator).square().sum(0)
    return normal * (degrees / chi_square).sqrt()


def log_student(degrees: int, places: Float[Tensor, "p D"]) -> Float[Tensor, " D"]:
    """The logarithm of the density of ``student``.

    Args:
        degrees: Of freedom.
        places: Where.
    """
    p = len(places)
    together = 0.5 * (degrees + p)
    constant = math.lgamma(together) - math.lgamma(0.5 * degrees) - 0.5 * p * math.log(degrees * math.pi)
    return constant - together * torch.log1p(places.square().sum(0) / degrees)


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
    return None if values.requires_grad or traced() else values
