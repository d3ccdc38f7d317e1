"""The input side of a layer factor: the columns ``a`` that a weight multiplies, and their second moment."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from lapwing.jacobian.layers.capture import ConvOptions


@final
@dataclass(frozen=True, eq=False)
class DenseColumns:
    """Columns laid out in memory: ``values [n, p, i, t]``, p independent groups, t positions sharing the weight."""

    values: Float[Tensor, "n p i t"]

    @property
    def positions(self) -> int:
        """Positions t that share the weight."""
        return self.values.shape[3]

    @property
    def width(self) -> int:
        """Inputs i of one group."""
        return self.values.shape[2]

    def double(self) -> DenseColumns:
        """The same in float64."""
        return DenseColumns(self.values.double())

    def taken(self, place: slice) -> DenseColumns:
        """Those of some of the examples."""
        return DenseColumns(self.values[place])

    def columns(self, ones: int = 0) -> Float[Tensor, "n p i t"]:
        """The columns of each example, followed by ``ones`` inputs that are one."""
        if not ones:
            return self.values
        n, p, _, t = self.values.shape
        return torch.cat([self.values, self.values.new_ones(()).expand(n, p, ones, t)], dim=2)

    def second_moment(self) -> Float[Tensor, "p i i"]:
        """``sum a aᵀ`` over examples and positions."""
        return sum_outer(self.values)

    def total(self) -> Float[Tensor, "p i"]:
        """``sum a`` over examples and positions."""
        return self.values.sum((0, 3))


@final
@dataclass(frozen=True, eq=False)
class ConvColumns:
    """Inputs of a convolution: ``image [n, channels, *space]``; a column is the patch under one output position."""

    image: Tensor
    options: ConvOptions

    @cached_property
    def _padded(self) -> Tensor:
        pads = [side for sides in reversed(self.options.padding) for side in sides]
        return F.pad(self.image, pads) if any(pads) else self.image

    @cached_property
    def _space(self) -> tuple[int, ...]:
        o = self.options
        return tuple(
            (size - d * (k - 1) - 1) // s + 1
            for size, k, s, d in zip(self._padded.shape[2:], o.kernel, o.stride, o.dilation, strict=True)
        )

    @property
    def positions(self) -> int:
        """Output positions t."""
        return prod(self._space)

    @property
    def width(self) -> int:
        """Inputs i of one group: channels times kernel size."""
        return self.image.shape[1] // self.options.groups * prod(self.options.kernel)

    def double(self) -> ConvColumns:
        """The same in float64."""
        return ConvColumns(self.image.double(), self.options)

    def taken(self, place: slice) -> ConvColumns:
        """Those of some of the examples."""
        return ConvColumns(self.image[place], self.options)

    def columns(self, ones: int = 0) -> Float[Tensor, "n p i t"]:
        """The patches of each example, by group, followed by ``ones`` inputs that are one.

        Cost:
            ``n * channels * prod(kernel) * t`` numbers; the only place where patches are unfolded.
        """
        windows = self._windows()
        n, p = windows.shape[:2]
        out = self.image.new_empty(n, p, self.width + ones, self.positions)
        out[:, :, : self.width].unflatten(2, windows.shape[2 : -len(self._space)]).unflatten(-1, self._space).copy_(
            windows
        )
        out[:, :, self.width :] = 1.0
        return out

    def _windows(self) -> Tensor:
        """Patches as [n, p, channels / p, *kernel, *space], a strided view of the padded image."""
        x, o = self._padded.contiguous(), self.options
        n, channels = x.shape[:2]
        strides = x.stride()
        axes = strides[2:]
        shape = (n, o.groups, channels // o.groups, *o.kernel, *self._space)
        stride = (
            strides[0],
            strides[1] * (channels // o.groups),
            strides[1],
            *(a * d for a, d in zip(axes, o.dilation, strict=True)),
            *(a * s for a, s in zip(axes, o.stride, strict=True)),
        )
        return x.as_strided(shape, stride)

    def second_moment(self) -> Float[Tensor, "p i i"]:
        """``sum a aᵀ`` over examples and positions."""
        windows = self._windows()
        flat = windows.movedim(0, -1 - len(self._space)).reshape(self.options.groups, self.width, -1)
        return flat @ flat.mT

    def total(self) -> Float[Tensor, "p i"]:
        """``sum a`` over examples and positions."""
        return self._windows().flatten(3 + len(self._space)).sum((0, -1)).flatten(1)


Columns = DenseColumns | ConvColumns
"""Either kind of layer input."""


def joined(parts: list[Columns]) -> Columns:
    """The inputs of one weight used several times, as if its uses were positions of one use."""
    return parts[0] if len(parts) == 1 else DenseColumns(torch.cat([part.columns() for part in parts], dim=-1))


def sum_outer(x: Float[Tensor, "n p i t"]) -> Float[Tensor, "p i i"]:
    """``sum_nt x xᵀ`` for each group: one product where columns are few, one an example where rows are."""
    if x.shape[2] < x.shape[3]:
        return (x @ x.mT).sum(0)
    flat = x.permute(1, 2, 0, 3).flatten(2)
    return flat @ flat.mT
