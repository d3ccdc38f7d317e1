"""Convolutions: linear maps of patches of an image, J = sum_t g_t a_tᵀ over the positions t of the output.

The second moment of the patches is an autocorrelation of the image where the kernel moves by one pixel.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.precision import DOUBLE, Precision, wide, wide_like
from lapwing.jacobian.layers.base import Call, Layer, Sizes, at_positions
from lapwing.jacobian.layers.linear import OuterProducts
from lapwing.jacobian.layers.moments import ColumnMoment, Moment, Sharing, is_few, sum_of_groups
from lapwing.linalg.operators.eigenbasis import Eigenbasis
from lapwing.linalg.products import product


@final
@dataclass(frozen=True)
class ConvolutionGeometry:
    """Geometry of a convolution, one entry a spatial axis.

    Args:
        kernel: Taps of the kernel.
        stride: Steps from one position to the next.
        padding: Zeros before and after; negative, what is cut off.
        dilation: Steps from one tap to the next.
        groups: Groups p of channels.
        spacing: Steps from one pixel to the next, with zeros between; ``None`` where there are none.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int
    spacing: tuple[int, ...] | None = None

    @property
    def taps(self) -> int:
        """Pixels under the kernel."""
        return torch.Size(self.kernel).numel()

    def padded(self, image: Float[Tensor, "n channels *space"]) -> Float[Tensor, "n channels *larger"]:
        """An image with the zeros around it, and those between its pixels."""
        if self.spacing is not None:
            image = with_zeros_between(image, self.spacing)
        return F.pad(image, [side for sides in reversed(self.padding) for side in sides])

    def size(self, image: Float[Tensor, "n channels *space"]) -> tuple[int, ...]:
        """That of an image with these zeros, along each axis."""
        spacing = self.spacing or (1,) * len(self.kernel)
        axes = zip(image.shape[2:], spacing, self.padding, strict=True)
        return tuple((pixels - 1) * step + 1 + sum(sides) for pixels, step, sides in axes)


def with_zeros_between(
    image: Float[Tensor, "n channels *space"], spacing: tuple[int, ...]
) -> Float[Tensor, "n channels *larger"]:
    """An image whose pixels are so many steps apart along each axis, with zeros between them."""
    sizes = [step * (size - 1) + 1 for step, size in zip(spacing, image.shape[2:], strict=True)]
    wide = image.new_zeros(*image.shape[:2], *sizes)
    wide[(..., *(slice(None, None, step) for step in spacing))] = image
    return wide


@dataclass(frozen=True, eq=False)
class Windows(OuterProducts):
    """A linear map of the window of an image under each position of the output.

    Args:
        a: The image, ``[n, channels, *space]``, whose windows are unfolded when they are asked for; or these.
        geometry: How the windows lie.
        unfolded: Whether a has the windows themselves, ``[n, p, i, t]``: those of several uses of one weight.
    """

    geometry: ConvolutionGeometry
    unfolded: bool = False

    @classmethod
    def sizes(cls, call: Call, n: int, weights: int) -> Sizes:
        """See ``LayerKind``."""
        windows = call.input.shape[1] * call.options.taps * call.shape[2:].numel()
        return Sizes(call.shape.numel() // n, windows, weights)

    @property
    def width(self) -> int:
        """See ``OuterProducts``."""
        return self.a.shape[2] if self.unfolded else self.a.shape[1] // self.geometry.groups * self.geometry.taps

    def inputs(self, ones: int = 0) -> Float[Tensor, "n p i t"]:
        """See ``OuterProducts``."""
        if not self.unfolded:
            return patches(self.a, self.geometry, ones)
        n, p, _, t = self.a.shape
        return torch.cat([self.a, self.a.new_ones(()).expand(n, p, ones, t)], dim=2) if ones else self.a

    def input_moment(self, sharing: Sharing, precision: Precision = DOUBLE) -> Moment:
        """See ``Factor``; *expand* unfolds nothing where the kernel moves by one pixel."""
        if self.unfolded or self.weight is None or sharing == "reduce":
            return super().input_moment(sharing, precision)
        return PatchMoment(replace(self, a=precision.operand(self.a)), len(self.g) * self.positions)

    def rotated_inputs(self, right: Eigenbasis) -> Float[Tensor, "n p w t"]:
        """See ``OuterProducts``; by another convolution, whose kernels are the eigenvectors."""
        if self.unfolded or self.weight is None or right.others:
            return super().rotated_inputs(right)
        o = self.geometry
        rows = right.vectors.to(self.a).mT.expand(o.groups, -1, -1).flatten(0, 1)
        bias = rows[:, -1] if self.ones else None
        kernels = rows[:, : self.width].unflatten(1, (-1, *o.kernel))
        image = o.padded(self.a)
        none = (0,) * len(o.kernel)
        moved = torch.convolution(image, kernels, bias, o.stride, none, o.dilation, False, none, o.groups)
        return moved.unflatten(1, (o.groups, -1)).flatten(3)


@final
@dataclass(frozen=True, eq=False)
class PatchMoment(Moment):
    """The second moment of the windows of an image.

    Args:
        windows: The factor that has them, as its products are made.
        count: See ``Moment``.
    """

    windows: Windows
    count: int

    @property
    def few(self) -> bool:
        """See ``Moment``."""
        own = self.windows
        return is_few(own.geometry.groups, own.width + own.ones, self.count)

    def columns(self) -> Float[Tensor, "i m"]:
        """See ``Moment``."""
        return ColumnMoment(self.windows.columns).columns()

    def total(self) -> Float[Tensor, "p i i"]:
        """See ``Moment``."""
        own = self.windows
        if slides(own.a, own.geometry):
            return autocorrelation(own.a, own.geometry, own.ones)
        return sum_of_groups(own.columns)


@final
@dataclass(frozen=True, eq=False)
class Convolution(Windows):
    """``torch.nn.functional.conv1d`` and those of two and three axes."""

    by_output = True

    @classmethod
    def signature(cls, func: Callable[..., Any]) -> inspect.Signature:
        """See ``LayerKind``; C++ hides it."""

        def conv(
            input: Any,
            weight: Any,
            bias: Any = None,
            stride: Any = 1,
            padding: Any = 0,
            dilation: Any = 1,
            groups: int = 1,
        ) -> None: ...

        return inspect.signature(conv)

    @classmethod
    def input_and_options(cls, func: Callable[..., Any], given: dict[str, Any]) -> tuple[Tensor, ConvolutionGeometry]:
        """See ``LayerKind``."""
        return given["input"], geometry_of(given)

    @classmethod
    def of(cls, layer: Layer, calls: list[Call], grads: list[Tensor], n: int) -> Convolution:
        """See ``LayerKind``."""
        a, g, geometry = windows_of(calls, grads)
        return cls(layer.weight, layer.bias, g, a, geometry, unfolded=len(calls) > 1)


def windows_of(calls: list[Call], grads: list[Tensor]) -> tuple[Tensor, Tensor, ConvolutionGeometry]:
    """The image, or the windows of several uses, with the gradients of them all and the geometry."""
    geometry = calls[0].options
    g = at_positions([part.flatten(3).unflatten(2, (geometry.groups, -1)) for part in grads], -1)
    if len(calls) == 1:
        return calls[0].input, g, geometry
    return at_positions([patches(call.input, call.options) for call in calls], -1), g, geometry


def geometry_of(given: dict[str, Any]) -> ConvolutionGeometry:
    """That of a convolution, from its arguments."""
    kernel = tuple(given["weight"].shape[2:])
    stride = each_axis(given["stride"], len(kernel))
    dilation = each_axis(given["dilation"], len(kernel))
    padding = given["padding"]
    if padding == "valid":
        sides = ((0, 0),) * len(kernel)
    elif padding == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        sides = tuple((total // 2, total - total // 2) for total in totals)
    else:
        sides = tuple((p, p) for p in each_axis(padding, len(kernel)))
    return ConvolutionGeometry(kernel, stride, sides, dilation, given["groups"])


def each_axis(value: int | tuple[int, ...], axes: int) -> tuple[int, ...]:
    """An option of a convolution for each spatial axis."""
    return (value,) * axes if isinstance(value, int) else tuple(value) * (axes // len(value))


def patches(
    image: Float[Tensor, "n channels *space"], geometry: ConvolutionGeometry, ones: int = 0
) -> Float[Tensor, "n p i t"]:
    """The patch of a convolution's input under each output position, followed by ``ones`` inputs that are one.

    Cost:
        ``n * channels * prod(kernel) * t`` numbers, those of one input side by side for all examples; the only place
        where patches are unfolded.
    """
    axes = len(geometry.kernel)
    windows = geometry.padded(image)
    for axis, (k, s, d) in enumerate(zip(geometry.kernel, geometry.stride, geometry.dilation, strict=True)):
        windows = windows.unfold(2 + axis, d * (k - 1) + 1, s)[..., ::d]
    windows = windows.unflatten(1, (geometry.groups, -1))  # [n, p, channels, *space, *kernel]
    space = range(3, 3 + axes)
    kernel = range(3 + axes, 3 + 2 * axes)
    windows = windows.permute(1, 2, *kernel, 0, *space)
    inputs = windows.shape[1 : 2 + axes]
    positions = windows.shape[2 + axes :]
    out = image.new_empty(geometry.groups, inputs.numel() + ones, *positions)
    out[:, : inputs.numel()].unflatten(1, inputs).copy_(windows)
    out[:, inputs.numel() :] = 1.0
    return out.flatten(3).movedim(2, 0)


def slides(image: Float[Tensor, "n channels *space"], geometry: ConvolutionGeometry) -> bool:
    """Whether ``autocorrelation`` applies, and pays: where the borders are not most of the image."""
    if (*geometry.stride, *geometry.dilation) != (1, 1, 1, 1):
        return False
    return all(size >= 2 * k for size, k in zip(geometry.size(image), geometry.kernel, strict=True))


def autocorrelation(
    image: Float[Tensor, "n channels h w"], geometry: ConvolutionGeometry, ones: int = 0
) -> Float[Tensor, "p i i"]:
    """``sum_nt a aᵀ`` over the patches a of a convolution that moves by one pixel; the patches are not unfolded.

    Two pixels of a patch have their products added up over a window of the image. For the two a column to the right, or
    a row below, the window moves by one: products that enter it are added, those that leave it subtracted.

    Args:
        image: The convolution's input.
        geometry: Its geometry.
        ones: Inputs that are one after each patch, at most one.

    Cost:
        About ``2 prod(kernel)`` products of two channels at each pixel, in place of ``prod(kernel)²``; memory
        ``kernel[1]`` images.
    """
    kh, kw = geometry.kernel
    p = geometry.groups
    x = geometry.padded(image).unflatten(1, (p, -1)).permute(1, 2, 3, 0, 4)  # [p, channels, h, n, w]
    rows = x.shape[2] - kh + 1
    columns = x.shape[4] - kw + 1
    shifted = torch.stack([x[..., v : v + columns] for v in range(kw)], 1)
    ends = moved(x[..., columns:].movedim(4, 1), x[..., : kw - 1].movedim(4, 1))
    found = torch.empty(p, kh, kw, x.shape[1], kh, kw, x.shape[1], **wide_like(x))
    for e in range(kh):
        found[:, 0, :, :, e] = rows_apart(shifted, ends, rows, e)
    left, right = moved(shifted[:, :, :, rows:].movedim(3, 1), shifted[:, :, :, : kh - 1].movedim(3, 1))
    for u in range(kh - 1):
        change = products(left[:, u], right[:, u:].flatten(1, 2)).unflatten(3, (-1, kw))
        found[:, u + 1, :, :, u + 1 :] = found[:, u, :, :, u:-1] + change
        found[:, u + 1 :, :, :, u] = found[:, u, :, :, u + 1 :].permute(0, 3, 4, 5, 1, 2)
    whole = F.pad(found.permute(0, 3, 1, 2, 6, 4, 5).flatten(4).flatten(1, 3), (0, ones, 0, ones))
    if ones:
        whole[:, :-1, -1] = whole[:, -1, :-1] = patches(wide(image).sum(0, keepdim=True), geometry)[0].sum(2)
        whole[:, -1, -1] = len(image) * rows * columns
    return whole


def rows_apart(shifted: Tensor, ends: tuple[Tensor, Tensor], rows: int, e: int) -> Float[Tensor, "p v c v2 c2"]:
    """Products of the pixels of a patch's first row with those e rows below, added up over the patches.

    Args:
        shifted: The image from each column of a patch on, ``[p, v, c, h, n, w]``.
        ends: The columns that enter and leave as the window moves.
        rows: Rows of the window.
        e: How far apart.
    """
    here = shifted[:, :, :, :rows]
    there = shifted[:, :, :, e : e + rows]
    change = products(ends[0][:, :, :, :rows], ends[1][:, :, :, e : e + rows])
    found = torch.empty(*shifted.shape[:3], *shifted.shape[1:3], **wide_like(here))
    found[:, :1] = products(here[:, :1], there)
    mirrored = found[:, :1, :, 1:].permute(0, 3, 4, 1, 2)
    found[:, 1:, :, :1] = products(here[:, 1:], there[:, :1]) if e else mirrored
    for v in range(shifted.shape[1] - 1):
        found[:, v + 1, :, 1:] = found[:, v, :, :-1] + change[:, v]
    return found


def moved(entering: Tensor, leaving: Tensor) -> tuple[Tensor, Tensor]:
    """Two factors whose product is that of what enters with itself less that of what leaves."""
    return torch.cat([entering, -leaving], -1), torch.cat([entering, leaving], -1)


def products(left: Float[Tensor, "p a c *k"], right: Float[Tensor, "p b d *k"]) -> Float[Tensor, "p a c b d"]:
    """Inner products over all axes from the fourth on."""
    found = product(left.flatten(3).flatten(1, 2), right.flatten(3).flatten(1, 2).mT)
    return found.unflatten(2, right.shape[1:3]).unflatten(1, left.shape[1:3])
