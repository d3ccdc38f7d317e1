"""Images out of focus, and images of things that moved."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from lapwing.evaluation.corruptions.geometry import resample
from lapwing.evaluation.corruptions.noise import uniform


def gaussian_blur(
    x: Float[Tensor, "n ch h w"], std: float, generator: torch.Generator | None = None
) -> Float[Tensor, "n ch h w"]:
    """Average with Gaussian weights of ``std`` pixels; beyond the border the image goes on as it ends."""
    reach = max(1, math.ceil(3 * std))
    at = torch.arange(-reach, reach + 1, device=x.device, dtype=x.dtype)
    weights = torch.exp(-0.5 * (at / std).square())
    return filtered(filtered(x, (weights / weights.sum())[:, None]), (weights / weights.sum())[None])


def defocus_blur(
    x: Float[Tensor, "n ch h w"], radius: float, generator: torch.Generator | None = None
) -> Float[Tensor, "n ch h w"]:
    """Average over a disk of ``radius`` pixels, as an open lens out of focus does."""
    reach = math.ceil(radius + 0.5)
    at = torch.arange(-reach, reach + 1, device=x.device, dtype=x.dtype)
    distance = (at[:, None].square() + at.square()).sqrt()
    disk = (radius + 0.5 - distance).clamp(0, 1)  # how much of a pixel the edge of the disk covers, nearly
    return filtered(x, disk / disk.sum())


def motion_blur(
    x: Float[Tensor, "n ch h w"], length: float, generator: torch.Generator | None
) -> Float[Tensor, "n ch h w"]:
    """Average along a straight way of ``length`` pixels, in a random direction for each image."""
    angle = math.pi * uniform([len(x)], like=x, generator=generator)
    direction = torch.stack([angle.sin(), angle.cos()], -1)[:, None, None]
    taps = 2 * math.ceil(length) + 1
    total = torch.zeros_like(x)
    for step in range(taps):
        total += resample(x, direction * (length * (step / (taps - 1) - 0.5)))
    return total / taps


def filtered(x: Float[Tensor, "n ch h w"], kernel: Float[Tensor, "a b"]) -> Float[Tensor, "n ch h w"]:
    """The weighted average of each pixel's neighbours, each channel on its own; the kernel has odd sides."""
    (a, b), channels = kernel.shape, x.shape[1]
    padded = functional.pad(x, (b // 2, b // 2, a // 2, a // 2), mode="replicate")
    return functional.conv2d(padded, kernel.expand(channels, 1, a, b), groups=channels)
