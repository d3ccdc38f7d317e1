"""Covariance functions, their hyper-parameters as one flat vector, random features; multiples, sums and products."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias, TypeVar, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ConfigError, ShapeError, UnsupportedError, is_number
from lapwing.ground.precision import wide

FeatureMap: TypeAlias = Callable[[Float[Tensor, "n p"]], Float[Tensor, "n D"]]
"""φ of rows of inputs, with ``E φ(x)ᵀ φ(x') = k(x, x')`` over the features' randomness."""

Index: TypeAlias = slice | Tensor
"""Some rows of a block."""

Entries: TypeAlias = Callable[[Index, Index], Tensor]
"""From some rows of one block and some of another to k between them."""

Positive: TypeAlias = float | tuple[float, ...] | Tensor
"""A positive number, or one a dimension of the inputs."""

K = TypeVar("K", bound="Kernel")

ALL = slice(None)
"""Every row of a block."""


@dataclass(frozen=True)
class Kernel(abc.ABC):
    """A covariance function k(x, x') of rows of inputs.

    Kernels add up and multiply: ``0.5 * Matern(1.5) + Linear()``. What a kernel has of positive numbers, its
    hyper-parameters, is read and replaced as one vector of their logarithms.
    """

    names: ClassVar[tuple[str, ...]] = ()
    """Fields that are positive numbers and can be learnt."""

    within: ClassVar[tuple[str, ...]] = ()
    """Fields that are kernels themselves."""

    def __post_init__(self) -> None:
        for name in self.names:
            object.__setattr__(self, name, _positive(self, name))

    def __call__(self, a: Float[Tensor, "n p"], b: Float[Tensor, "m p"]) -> Float[Tensor, "n m"]:
        """``k(a_i, b_j)``, differentiable in both, and in hyper-parameters that are tensors.

        A kernel has this or ``between``: each is made of the other here.

        Args:
            a: Rows of inputs.
            b: Others.
        """
        return self.between(a, b)(ALL, ALL)

    def between(self, a: Float[Tensor, "n p"], b: Float[Tensor, "m p"]) -> Entries:
        """``k(a_i, b_j)`` a piece at a time: what is made of each input alone is made once.

        Args:
            a: Rows of inputs.
            b: Others.

        Raises:
            ConfigError: If the kernel has no ``__call__`` either.
        """
        if type(self).__call__ is Kernel.__call__:
            raise ConfigError(
                "a kernel with __call__ or between", f"{type(self).__name__} with neither", "__call__(a, b)"
            )
        return lambda i, j: self(a[i], b[j])

    @abc.abstractmethod
    def diagonal(self, x: Float[Tensor, "n p"]) -> Float[Tensor, " n"]:
        """``k(x_i, x_i)``."""

    def categorical(self, columns: int) -> set[int]:
        """Which columns of the inputs only name categories, so that no scaling may touch them.

        Args:
            columns: How many the inputs have.
        """
        return set[int]().union(*(kernel.categorical(columns) for kernel in self._inner()))

    def without_derivative(self, drawn: bool) -> str | None:
        """What of the kernel has no derivative in the inputs; ``None`` where all of it has one.

        Args:
            drawn: Whether its random features are meant too.
        """
        found = (kernel.without_derivative(drawn) for kernel in self._inner())
        return next((each for each in found if each is not None), None)

    def gradient(
        self, a: Float[Tensor, "n p"], b: Float[Tensor, "m p"], weight: Float[Tensor, "n m"]
    ) -> Float[Tensor, " h"]:
        """``Σ_ij W_ij ∂k(a_i, b_j)`` in ``hyper``; by differentiation where a kernel has no formula.

        Args:
            a: Rows of inputs.
            b: Others.
            weight: W.
        """
        hyper = self.hyper.requires_grad_()
        if not len(hyper):
            return hyper.detach()
        with torch.enable_grad():
            total = (self.with_hyper(hyper)(a, b) * weight).sum()
        return torch.autograd.grad(total, hyper)[0]

    def features(self, count: int, x: Float[Tensor, "n p"], generator: torch.Generator) -> FeatureMap:
        """Random features whose inner products are unbiased for k, independent of each other.

        Args:
            count: Features D.
            x: Inputs, for their dimension, dtype and device.
            generator: Source of randomness.

        Raises:
            UnsupportedError: If there are none for this kernel.
        """
        raise UnsupportedError(
            "a kernel with random features, to draw functions from its prior",
            f"{self!r:.60}",
            "a kernel of lapwing's, Custom(function, draw=...), or Cholesky() and predict(x, joint=True).sample(8)",
        )

    @property
    def hyper(self) -> Float[Tensor, " h"]:
        """Logarithms of the hyper-parameters, float64; those of kernels within come last."""
        own = [
            torch.as_tensor(getattr(self, name), dtype=torch.float64, device="cpu").reshape(-1).log()
            for name in self.names
        ]
        return torch.cat([*own, torch.zeros(0, dtype=torch.float64), *(kernel.hyper for kernel in self._inner())])

    def labels(self) -> list[str]:
        """What each entry of ``hyper`` is."""
        found: list[str] = []
        for name, size in zip(self.names, self._sizes(), strict=True):
            found += [name] if size == 1 else [f"{name}[{i}]" for i in range(size)]
        several = len(self.within) > 1
        for name, kernel in zip(self.within, self._inner(), strict=True):
            found += [f"{name}.{label}" if several or label in found else label for label in kernel.labels()]
        return found

    def with_hyper(self: K, values: Float[Tensor, " h"]) -> K:
        """The kernel with other hyper-parameters: tensors where ``values`` asks for its gradient, else numbers.

        Args:
            values: Logarithms, as ``hyper`` has them.
        """
        changes: dict[str, Any] = {}
        inner = self._inner()
        parts = values.split(self._sizes() + [len(kernel.hyper) for kernel in inner])
        for name, part in zip(self.names, parts, strict=False):
            own = part.exp()
            if own.requires_grad:
                changes[name] = own
            elif len(own) == 1:
                changes[name] = float(own)
            else:
                changes[name] = tuple(own.tolist())
        for name, kernel, part in zip(self.within, inner, parts[len(self.names) :], strict=True):
            changes[name] = kernel.with_hyper(part)
        return replace(self, **changes)

    def _inner(self) -> list[Kernel]:
        return [getattr(self, name) for name in self.within]

    def _sizes(self) -> list[int]:
        return [torch.as_tensor(getattr(self, name)).numel() for name in self.names]

    def __add__(self, other: Kernel) -> Kernel:
        """``k + k'``."""
        return Sum(self, _kernel(other))

    def __mul__(self, other: Kernel | float) -> Kernel:
        """``k k'``, or a multiple of k."""
        return Scaled(self, other) if isinstance(other, int | float) else Product(self, _kernel(other))

    __rmul__ = __mul__


Kernels: TypeAlias = Kernel | tuple[Kernel, ...]
"""A kernel for all outputs, or one an output."""


@final
@dataclass(frozen=True)
class Scaled(Kernel):
    """``σ² k``.

    Args:
        kernel: k.
        variance: σ², in squared units of the function.

    Example:
        >>> from lapwing.gp.kernels.polynomial import Constant
        >>> (0.5 * Constant()).diagonal(torch.zeros(1, 2))
        tensor([0.5000])
    """

    names = ("variance",)
    within = ("kernel",)
    kernel: Kernel
    variance: Positive = 1.0

    def between(self, a: Float[Tensor, "n p"], b: Float[Tensor, "m p"]) -> Entries:
        """See ``Kernel``."""
        inner = self.kernel.between(a, b)
        variance = like(self.variance, a)
        return lambda i, j: variance * inner(i, j)

    def diagonal(self, x: Float[Tensor, "n p"]) -> Float[Tensor, " n"]:
        """See ``Kernel``."""
        return like(self.variance, x) * self.kernel.diagonal(x)

    def gradient(
        self, a: Float[Tensor, "n p"], b: Float[Tensor, "m p"], weight: Float[Tensor, "n m"]
    ) -> Float[Tensor, " h"]:
        """See ``Kernel``."""
        weight = like(self.variance, weight) * weight
        own = wide(weight * self.kernel(a, b)).sum()[None].cpu()
        return torch.cat([own, self.kernel.gradient(a, b, weight)])

    def features(self, count: int, x: Float[Tensor, "n p"], generator: torch.Generator) -> FeatureMap:
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
        first = self.first.between(a, b)
        second = self.second.between(a, b)
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
        >>> from lapwing.gp.kernels.polynomial import Constant, Linear
        >>> (Linear() + Constant()).diagonal(torch.ones(1, 2))
        tensor([3.])
    """

    joined = torch.add

    def gradient(
        self, a: Float[Tensor, "n p"], b: Float[Tensor, "m p"], weight: Float[Tensor, "n m"]
    ) -> Float[Tensor, " h"]:
        """See ``Kernel``."""
        return torch.cat([self.first.gradient(a, b, weight), self.second.gradient(a, b, weight)])

    def features(self, count: int, x: Float[Tensor, "n p"], generator: torch.Generator) -> FeatureMap:
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
        >>> from lapwing.gp.kernels.polynomial import Linear
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

    def features(self, count: int, x: Float[Tensor, "n p"], generator: torch.Generator) -> FeatureMap:
        """Products of independent features, one by one."""
        first = self.first.features(count, x, generator)
        second = self.second.features(count, x, generator)
        return lambda inputs: count**0.5 * first(inputs) * second(inputs)


def _positive(kernel: Kernel, name: str) -> Positive:
    """A hyper-parameter, checked; a tensor that asks for its gradient stays one, arrays become numbers."""
    value: Any = getattr(kernel, name)
    known = value.tolist() if isinstance(value, Tensor | np.ndarray) else value
    values = tuple(known) if isinstance(known, tuple | list) else (known,)
    if not values or not all(is_number(v) and 0 < float(v) < math.inf for v in values):
        raise ConfigError(f"a positive {name}, or one a dimension", f"{name}={known!r:.40}", f"{name}=1.0")
    if isinstance(value, Tensor) and value.requires_grad:
        return value
    return tuple(map(float, values)) if isinstance(known, tuple | list) else float(known)


def _kernel(other: object) -> Kernel:
    if not isinstance(other, Kernel):
        raise ConfigError("a kernel to add or multiply", f"{other!r:.40}", "0.1 * Constant(), or a positive factor")
    return other


def like(value: Positive, x: Tensor) -> Tensor:
    """A hyper-parameter in the dtype and on the device of some inputs."""
    return torch.as_tensor(value, dtype=x.dtype, device=x.device)


def check_dimensions(kernel: Kernel, *inputs: Tensor) -> None:
    """Refuse inputs of another dimension than there are length-scales."""
    scales = torch.as_tensor(getattr(kernel, "lengthscale", 1.0)).numel()
    sizes = {x.shape[1] if x.ndim == 2 else 0 for x in inputs}
    if 0 in sizes:
        raise ShapeError("inputs [n, p]", f"{[list(x.shape) for x in inputs]}", "x[:, None] for a single dimension")
    if len(sizes) > 1:
        raise ShapeError("inputs with equally many columns", f"{sorted(sizes)}", "new inputs as those of the data")
    if scales not in (1, *sizes):
        hint = "one length-scale a column, or one for all"
        raise ShapeError(f"inputs with {scales} columns", f"{max(sizes)}", hint)


def each_of(kernel: Kernels) -> tuple[Kernel, ...]:
    """The kernels there are: the one for all outputs, or that of each."""
    return kernel if isinstance(kernel, tuple) else (kernel,)


def check_recorded(kernel: Kernels) -> None:
    """Refuse to record a kernel that is more than operations of PyTorch on its inputs.

    Raises:
        UnsupportedError: Naming the kernel.
    """
    for each in each_of(kernel):
        found = each.without_derivative(drawn=False)
        if found is not None:
            raise UnsupportedError("a kernel that can be recorded", found, "another kernel, such as Matern()")


def check_differentiable(kernel: Kernels, *, drawn: bool = False) -> None:
    """Refuse to differentiate a kernel in the inputs, where it has no derivative.

    Args:
        kernel: A kernel, or one an output.
        drawn: Whether functions are drawn by random features.

    Raises:
        UnsupportedError: Naming the kernel.
    """
    for each in each_of(kernel):
        found = each.without_derivative(drawn)
        if found is not None:
            hint = "torch.no_grad(), or another kernel, such as Matern()"
            raise UnsupportedError("a kernel that is differentiated in the inputs", found, hint)
