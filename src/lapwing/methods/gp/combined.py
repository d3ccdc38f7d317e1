"""Kernels made of kernels: multiples, sums and products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.methods.gp.kernels import Entries, Features, Kernel, Positive, like


@final
@dataclass(frozen=True)
class Scaled(Kernel):
    """``σ² k``.

    Args:
        kernel: k.
        variance: σ², in squared units of the function.

    Example:
        >>> from lapwing.methods.gp.polynomial import Constant
        >>> (0.5 * Constant()).diagonal(torch.zeros(1, 2))
        tensor([0.5000])
    """

    names = ("variance",)
    within = ("kernel",)
    kernel: Kernel
    variance: Positive = 1.0

    def between(self, a: Float[Tensor, "n p"], b: Float[Tensor, "m p"]) -> Entries:
        """See ``Kernel``."""
        inner, variance = self.kernel.between(a, b), like(self.variance, a)
        return lambda i, j: variance * inner(i, j)

    def diagonal(self, x: Float[Tensor, "n p"]) -> Float[Tensor, " n"]:
        """See ``Kernel``."""
        return like(self.variance, x) * self.kernel.diagonal(x)

    def gradient(
        self, a: Float[Tensor, "n p"], b: Float[Tensor, "m p"], weight: Float[Tensor, "n m"]
    ) -> Float[Tensor, " h"]:
        """See ``Kernel``."""
        weight = like(self.variance, weight) * weight
        own = (weight * self.kernel(a, b)).sum(dtype=torch.float64)[None].cpu()
        return torch.cat([own, self.kernel.gradient(a, b, weight)])

    def features(self, count: int, x: Float[Tensor, "n p"], generator: torch.Generator) -> Features:
        """See ``Kernel``."""
        inner = self.kernel.features(count, x, generator)
        return lambda inputs: like(self.variance, inputs).sqrt() * inner(inputs)


@dataclass(frozen=True)
class _Pair(Kernel):
    """Two kernels, whose values are joined one by one.

    Args:
        first: k.
        second: k'.
    """

    joined: ClassVar[Callable[[Tensor, Tensor], Tensor]]
    """From a value of each to that of the pair."""

    within = ("first", "second")
    first: Kernel
    second: Kernel

    def between(self, a: Float[Tensor, "n p"], b: Float[Tensor, "m p"]) -> Entries:
        """See ``Kernel``."""
        first, second = self.first.between(a, b), self.second.between(a, b)
        return lambda i, j: self.joined(first(i, j), second(i, j))

    def diagonal(self, x: Float[Tensor, "n p"]) -> Float[Tensor, " n"]:
        """See ``Kernel``."""
        return self.joined(self.first.diagonal(x), self.second.diagonal(x))


@final
@dataclass(frozen=True)
class Sum(_Pair):
    """``k + k'``: the sum of independent functions.

    Args:
        first: k.
        second: k'.

    Example:
        >>> from lapwing.methods.gp.polynomial import Constant, Linear
        >>> (Linear() + Constant()).diagonal(torch.ones(1, 2))
        tensor([3.])
    """

    joined = torch.add

    def gradient(
        self, a: Float[Tensor, "n p"], b: Float[Tensor, "m p"], weight: Float[Tensor, "n m"]
    ) -> Float[Tensor, " h"]:
        """See ``Kernel``."""
        return torch.cat([self.first.gradient(a, b, weight), self.second.gradient(a, b, weight)])

    def features(self, count: int, x: Float[Tensor, "n p"], generator: torch.Generator) -> Features:
        """Half of the features each, side by side."""
        first = self.first.features(count - count // 2, x, generator)
        second = self.second.features(max(1, count // 2), x, generator)
        return lambda inputs: torch.cat([first(inputs), second(inputs)], 1)


@final
@dataclass(frozen=True)
class Product(_Pair):
    """``k k'``.

    Args:
        first: k.
        second: k'.

    Example:
        >>> from lapwing.methods.gp.polynomial import Linear
        >>> (Linear() * Linear()).diagonal(torch.ones(1, 2))
        tensor([4.])
    """

    joined = torch.mul

    def gradient(
        self, a: Float[Tensor, "n p"], b: Float[Tensor, "m p"], weight: Float[Tensor, "n m"]
    ) -> Float[Tensor, " h"]:
        """See ``Kernel``."""
        first = self.first.gradient(a, b, weight * self.second(a, b))
        return torch.cat([first, self.second.gradient(a, b, weight * self.first(a, b))])

    def features(self, count: int, x: Float[Tensor, "n p"], generator: torch.Generator) -> Features:
        """Products of independent features, one by one."""
        first = self.first.features(count, x, generator)
        second = self.second.features(count, x, generator)
        return lambda inputs: count**0.5 * first(inputs) * second(inputs)
