"""What a convolution sees of its input: the patch under each output position, and the second moment of all patches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


@final
@dataclass(frozen=True)
class ConvOptions:
    """Geometry of a convolution, one entry a spatial axis; padding as (before, after)."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int

    def padded(self, image: Float[Tensor, "n channels *space"]) -> Float[Tensor, "n channels *larger"]:
        """An image with the zeros around it."""
        return F.pad(image, [side for sides in reversed(self.padding) for side in sides])


def patches(image: Float[Tensor, "n channels *space"], options: ConvOptions, ones: int = 0) -> Float[Tensor, "n p i t"]:
    """The patch of a convolution's input under each output position, followed by ``ones`` inputs that are one.

    Cost:
        ``n * channels * prod(kernel) * t`` numbers, those of one input side by side for all examples; the only place
        where patches are unfolded.
    """
    axes = len(options.kernel)
    windows = options.padded(image)
    for axis, (k, s, d) in enumerate(zip(options.kernel, options.stride, options.dilation, strict=True)):
        windows = windows.unfold(2 + axis, d * (k - 1) + 1, s)[..., ::d]
    windows = windows.unflatten(1, (options.groups, -1))  # [n, p, channels, *space, *kernel]
    space, kernel = range(3, 3 + axes), range(3 + axes, 3 + 2 * axes)
    windows = windows.permute(1, 2, *kernel, 0, *space)
    inputs, positions = windows.shape[1 : 2 + axes], windows.shape[2 + axes :]
    out = image.new_empty(options.groups, inputs.numel() + ones, *positions)
    out[:, : inputs.numel()].unflatten(1, inputs).copy_(windows)
    out[:, inputs.numel() :] = 1.0
    return out.flatten(3).movedim(2, 0)


def slides(image: Float[Tensor, "n channels *space"], options: ConvOptions) -> bool:
    """Whether ``autocorrelation`` applies, and pays: where the borders are not most of the image."""
    steps = (*options.stride, *options.dilation)
    sizes = zip(image.shape[2:], options.padding, options.kernel, strict=True)
    return steps == (1, 1, 1, 1) and all(size + sum(sides) >= 2 * k for size, sides, k in sizes)


def autocorrelation(
    image: Float[Tensor, "n channels h w"], options: ConvOptions, ones: int = 0
) -> Float[Tensor, "p i i"]:
    """``sum_nt a aᵀ`` over the patches a of a convolution that moves by one pixel; the patches are not unfolded.

    Two pixels of a patch have their products added up over a window of the image. For the two a column to the right, or
    a row below, the window moves by one: products that enter it are added, those that leave it subtracted.

    Args:
        image: The convolution's input.
        options: Its geometry.
        ones: Inputs that are one after each patch, at most one.

    Cost:
        About ``2 prod(kernel)`` products of two channels at each pixel, in place of ``prod(kernel)²``; memory
        ``kernel[1]`` images.
    """
    (kh, kw), p = options.kernel, options.groups
    x = options.padded(image).unflatten(1, (p, -1)).permute(1, 2, 3, 0, 4)  # [p, channels, h, n, w]
    rows, columns = x.shape[2] - kh + 1, x.shape[4] - kw + 1
    shifted = torch.stack([x[..., v : v + columns] for v in range(kw)], 1)
    ends = moved(x[..., columns:].movedim(4, 1), x[..., : kw - 1].movedim(4, 1))
    found = x.new_empty(p, kh, kw, x.shape[1], kh, kw, x.shape[1])
    for e in range(kh):
        found[:, 0, :, :, e] = rows_apart(shifted, ends, rows, e)
    left, right = moved(shifted[:, :, :, rows:].movedim(3, 1), shifted[:, :, :, : kh - 1].movedim(3, 1))
    for u in range(kh - 1):
        change = products(left[:, u], right[:, u:].flatten(1, 2)).unflatten(3, (-1, kw))
        found[:, u + 1, :, :, u + 1 :] = found[:, u, :, :, u:-1] + change
        found[:, u + 1 :, :, :, u] = found[:, u, :, :, u + 1 :].permute(0, 3, 4, 5, 1, 2)
    whole = F.pad(found.permute(0, 3, 1, 2, 6, 4, 5).flatten(4).flatten(1, 3), (0, ones, 0, ones))
    if ones:
        whole[:, :-1, -1] = whole[:, -1, :-1] = patches(image.sum(0, keepdim=True), options)[0].sum(2)
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
    here, there = shifted[:, :, :, :rows], shifted[:, :, :, e : e + rows]
    change = products(ends[0][:, :, :, :rows], ends[1][:, :, :, e : e + rows])
    found = here.new_empty(*shifted.shape[:3], *shifted.shape[1:3])
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
    found = left.flatten(3).flatten(1, 2) @ right.flatten(3).flatten(1, 2).mT
    return found.unflatten(2, right.shape[1:3]).unflatten(1, left.shape[1:3])
