"""Transposed convolutions: linear maps of patches of their input with zeros between its pixels.

With stride s, dilation d, padding q and kernel taps k = 0 ... K - 1 along an axis (of several, each by itself),

    y[τ] = Σ_{k, t: s t + d k - q = τ} W[k] x[t] = Σ_j W[K - 1 - j] z[τ + d j],

where z has x[t] at s t + d (K - 1) - q and zeros elsewhere: a convolution of z by the reversed kernel, which moves by
one pixel. So J = Σ_τ g_τ a_τᵀ with a_τ the patch of z under τ, and KFAC's factors are, over the positions τ of the
output, G = Σ g_τ g_τᵀ and A = Σ a_τ a_τᵀ, as for every convolution. The weight ``[inputs, outputs, *kernel]`` has other
axes first than the matrix ``[outputs, inputs · kernel]`` that G ⊗ A acts on, and the kernel the other way round.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from jaxtyping import Float, Shaped
from torch import Tensor

from lapwing.jacobian.layers.base import Call, Layer
from lapwing.jacobian.layers.convolution import ConvolutionGeometry, Windows, each_axis, windows_of


@final
@dataclass(frozen=True, eq=False)
class TransposedConvolution(Windows):
    """``torch.nn.functional.conv_transpose1d`` and those of two and three axes; its geometry is that of z."""

    @classmethod
    def signature(cls, func: Callable[..., Any]) -> inspect.Signature:
        """See ``LayerKind``; C++ hides it."""

        def conv_transpose(
            input: Any,
            weight: Any,
            bias: Any = None,
            stride: Any = 1,
            padding: Any = 0,
            output_padding: Any = 0,
            groups: int = 1,
            dilation: Any = 1,
        ) -> None: ...

        return inspect.signature(conv_transpose)

    @classmethod
    def input_and_options(cls, func: Callable[..., Any], given: dict[str, Any]) -> tuple[Tensor, ConvolutionGeometry]:
        """See ``LayerKind``."""
        kernel = tuple(given["weight"].shape[2:])
        axes = len(kernel)
        dilation = each_axis(given["dilation"], axes)
        padding = each_axis(given["padding"], axes)
        further = each_axis(given["output_padding"], axes)
        reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        sides = tuple((r - q, r - q + f) for r, q, f in zip(reach, padding, further, strict=True))
        stride = each_axis(given["stride"], axes)
        spacing = stride if max(stride) > 1 else None
        geometry = ConvolutionGeometry(kernel, (1,) * axes, sides, dilation, given["groups"], spacing)
        return given["input"].detach(), geometry

    @classmethod
    def of(cls, layer: Layer, calls: list[Call], grads: list[Tensor], n: int) -> TransposedConvolution:
        """See ``LayerKind``."""
        a, g, geometry = windows_of(calls, grads)
        return cls(layer.weight, layer.bias, g, a, geometry, unfolded=len(calls) > 1)

    def flat_weight(self, matrices: Float[Tensor, "... p o i"]) -> Float[Tensor, "... d"]:
        """See ``OuterProducts``: inputs first, and the kernel reversed."""
        kernel = self.geometry.kernel
        axes = list(range(-len(kernel), 0))
        weight = matrices.unflatten(-1, (-1, *kernel)).flip(axes)
        inputs = -len(kernel) - 1
        return weight.transpose(inputs - 1, inputs).flatten(inputs - 2)

    def weight_matrix(self, flat: Shaped[Tensor, " d"]) -> Shaped[Tensor, "p o i"]:
        """See ``OuterProducts``."""
        kernel = self.geometry.kernel
        p, o = self.g.shape[2:4]
        weight = flat.view(p, -1, o, *kernel).flip(list(range(3, 3 + len(kernel))))
        return weight.transpose(1, 2).flatten(2)

    def factored(self, cotangents: int) -> bool:
        """See ``OuterProducts``: products are made with rows, in whose order the weights are."""
        return False

    @property
    def multiplications(self) -> int:
        """See ``OuterProducts``: each pixel of x by the whole kernel; of several uses at least those it must take."""
        _, _, p, o, t = self.g.shape
        pixels = t // self.geometry.taps if self.unfolded else self.a.shape[2:].numel()
        return p * o * (self.width if self.weight is not None else 1) * pixels
