"""The changes: noise, pixels from elsewhere, light, blur, and too few bytes; by name, and how strong they are."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from lapwing.ground import probes

Images: TypeAlias = Float[Tensor, "n ch h w"]
"""Intensities, in [0, 1] as a rule."""

Change: TypeAlias = Callable[[Images, float, torch.Generator | None], Images]
"""A change of images, by its strength and a source of random numbers."""

SEVERITIES = (1, 2, 3, 4, 5)
"""From hardly visible to plain, to a network that was not trained on it."""


def gaussian_noise(x: Images, std: float, generator: torch.Generator | None) -> Images:
    """Noise of one size everywhere, x + std ε, as of a sensor in the dark."""
    return x + std * probes.gaussian(x.shape, like=x, generator=generator)


def shot_noise(x: Images, photons: float, generator: torch.Generator | None) -> Images:
    """Counts instead of intensities, Poisson(photons x) / photons; black stays black."""
    return probes.poisson(photons * x, generator=generator) / photons


def impulse_noise(x: Images, share: float, generator: torch.Generator | None) -> Images:
    """A share of the numbers replaced, half of them by 0 and half by 1."""
    u = probes.uniform(x.shape, like=x, generator=generator)
    return x.masked_fill(u < 0.5 * share, 0.0).masked_fill(u > 1 - 0.5 * share, 1.0)


def rotation(x: Images, degrees: float, generator: torch.Generator | None) -> Images:
    """Turned about the middle by ``degrees``, a random half of the images to the left and the others to the right."""
    side = probes.uniform([len(x)], like=x, generator=generator) < 0.5
    angle = torch.where(side, 1.0, -1.0).to(x)[:, None, None] * math.radians(degrees)
    rows, columns = _middle(x)
    down = (angle.cos() - 1) * rows - angle.sin() * columns
    right = angle.sin() * rows + (angle.cos() - 1) * columns
    return resample(x, torch.stack([down, right], -1))


def elastic(x: Images, shift: float, generator: torch.Generator | None) -> Images:
    """Each pixel moved by a smooth random field, ``shift`` pixels in root mean square along each axis."""
    n, _, h, w = x.shape
    coarse = [max(2, round(4 * side / min(h, w))) for side in (h, w)]
    field = probes.gaussian([n, 2, *coarse], like=x, generator=generator)
    smooth = functional.interpolate(field, (h, w), mode="bicubic", align_corners=True)
    smooth = smooth / smooth.square().mean((-3, -2, -1), keepdim=True).sqrt()
    return resample(x, shift * smooth.movedim(1, -1))


def resample(x: Images, shift: Float[Tensor, "#n #h #w 2"]) -> Images:
    """Each pixel taken ``shift`` further down and to the right, between pixels linearly, beyond the border the border.

    Args:
        x: Images.
        shift: Pixels down and right, one pair for all pixels of an image or one for each.
    """
    n, _, h, w = x.shape
    rows, columns = _middle(x)
    down = (rows + shift[..., 0]).expand(n, h, w) * (2 / h)
    right = (columns + shift[..., 1]).expand(n, h, w) * (2 / w)
    grid = torch.stack([right, down], -1)
    return functional.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _middle(x: Images) -> tuple[Float[Tensor, "h 1"], Float[Tensor, "1 w"]]:
    """Rows and columns of the pixels, counted from the middle of the image."""
    rows, columns = (torch.arange(side, device=x.device, dtype=x.dtype) - (side - 1) / 2 for side in x.shape[2:])
    return rows[:, None], columns[None]


def brightness(x: Images, amount: float, generator: torch.Generator | None = None) -> Images:
    """More light everywhere, x + amount; what exceeds 1 is lost."""
    return x + amount


def contrast(x: Images, factor: float, generator: torch.Generator | None = None) -> Images:
    """Differences from the image's mean times ``factor``."""
    mean = x.mean((1, 2, 3), keepdim=True)
    return mean + factor * (x - mean)


def fog(x: Images, density: float, generator: torch.Generator | None) -> Images:
    """Mixed with bright haze in clouds of every size, (1 - density) x + density · haze with haze in [½, 1]."""
    n, _, h, w = x.shape
    haze = torch.zeros(n, 1, h, w, dtype=x.dtype, device=x.device)
    for octave in range(4):
        cells = probes.gaussian([n, 1, 2 ** (octave + 1), 2 ** (octave + 1)], like=x, generator=generator)
        haze = haze + 0.6**octave * functional.interpolate(cells, (h, w), mode="bilinear", align_corners=True)
    low = haze.amin((2, 3), keepdim=True)
    high = haze.amax((2, 3), keepdim=True)
    haze = 0.5 + 0.5 * (haze - low) / (high - low).clamp(min=torch.finfo(x.dtype).tiny)
    return (1 - density) * x + density * haze


def occlusion(x: Images, share: float, generator: torch.Generator | None) -> Images:
    """A grey square at a random place, its side ``share`` of the shorter side of the image."""
    n, _, *sides = x.shape
    size = max(1, round(share * min(sides)))
    places = probes.uniform([2, n], like=x, generator=generator)
    inside: list[Tensor] = []
    for side, place in zip(sides, places, strict=True):
        start = (place * (side - size + 1)).floor().clamp(max=side - size)[:, None]
        at = torch.arange(side, device=x.device)
        inside.append((at >= start) & (at < start + size))
    return x.masked_fill((inside[0][:, :, None] & inside[1][:, None, :])[:, None], 0.5)


def gaussian_blur(x: Images, std: float, generator: torch.Generator | None = None) -> Images:
    """Average with Gaussian weights of ``std`` pixels; beyond the border the image goes on as it ends."""
    reach = max(1, math.ceil(3 * std))
    at = torch.arange(-reach, reach + 1, device=x.device, dtype=x.dtype)
    weights = torch.exp(-0.5 * (at / std).square())
    return filtered(filtered(x, (weights / weights.sum())[:, None]), (weights / weights.sum())[None])


def defocus_blur(x: Images, radius: float, generator: torch.Generator | None = None) -> Images:
    """Average over a disk of ``radius`` pixels, as an open lens out of focus does."""
    reach = math.ceil(radius + 0.5)
    at = torch.arange(-reach, reach + 1, device=x.device, dtype=x.dtype)
    distance = (at[:, None].square() + at.square()).sqrt()
    disk = (radius + 0.5 - distance).clamp(0, 1)  # how much of a pixel the edge of the disk covers, nearly
    return filtered(x, disk / disk.sum())


def motion_blur(x: Images, length: float, generator: torch.Generator | None) -> Images:
    """Average along a straight way of ``length`` pixels, in a random direction for each image."""
    angle = math.pi * probes.uniform([len(x)], like=x, generator=generator)
    direction = torch.stack([angle.sin(), angle.cos()], -1)[:, None, None]
    taps = 2 * math.ceil(length) + 1
    total = torch.zeros_like(x)
    for step in range(taps):
        total += resample(x, direction * (length * (step / (taps - 1) - 0.5)))
    return total / taps


def filtered(x: Images, kernel: Float[Tensor, "a b"]) -> Images:
    """The weighted average of each pixel's neighbours, each channel on its own; the kernel has odd sides."""
    a, b = kernel.shape
    channels = x.shape[1]
    padded = functional.pad(x, (b // 2, b // 2, a // 2, a // 2), mode="replicate")
    return functional.conv2d(padded, kernel.expand(channels, 1, a, b), groups=channels)


SIDE = 8
"""Side of the blocks that JPEG transforms, pixels."""

LUMINANCE = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
"""Step of each coefficient at quality 50, in 1/255 of full intensity (ITU-T T.81, table K.1)."""


def pixelate(x: Images, share: float, generator: torch.Generator | None = None) -> Images:
    """Divided into ``share`` as many rows and columns as there are, each cell with its mean."""
    rows, columns = (_cells(side, max(1, round(share * side)), x) for side in x.shape[2:])
    return rows @ x @ columns.mT


def jpeg(x: Images, quality: float, generator: torch.Generator | None = None) -> Images:
    """Cosine coefficients of 8 × 8 blocks rounded to JPEG's steps at a ``quality`` of 1 to 100.

    Each channel on its own, by the table for luminance: the loss of JPEG without its change of colours.
    """
    n, channels, h, w = x.shape
    padded = functional.pad(x, (0, -w % SIDE, 0, -h % SIDE), mode="replicate")
    tall = padded.shape[2] // SIDE
    wide = padded.shape[3] // SIDE
    blocks = (255 * padded - 128).reshape(n, channels, tall, SIDE, wide, SIDE).transpose(3, 4)
    scale = 50 / quality if quality < 50 else 2 - quality / 50
    steps = (torch.tensor(LUMINANCE, dtype=x.dtype, device=x.device) * scale).round().clamp(1, 255)
    cosines = _cosines(x)
    kept = ((cosines @ blocks @ cosines.mT) / steps).round() * steps
    back = (cosines.mT @ kept @ cosines).transpose(3, 4).reshape(padded.shape)
    return ((back + 128) / 255)[..., :h, :w]


def _cosines(like: Tensor) -> Float[Tensor, "8 8"]:
    """The orthonormal discrete cosine transform of a block, one frequency a row."""
    at = torch.arange(SIDE, dtype=torch.float64)
    rows = torch.cos(math.pi / SIDE * at[:, None] * (at + 0.5)) * math.sqrt(2 / SIDE)
    rows[0] *= math.sqrt(0.5)
    return rows.to(like)


def _cells(side: int, count: int, like: Tensor) -> Float[Tensor, "side side"]:
    """The matrix that gives each of ``side`` pixels the mean of its cell of ``count``."""
    cell = torch.arange(side, device=like.device) * count // side
    same = (cell[:, None] == cell).to(like.dtype)
    return same / same.sum(1, keepdim=True)


@final
@dataclass(frozen=True)
class Corruption:
    """A change of images and its strength at each severity.

    Args:
        change: The change.
        levels: Its strength at each of ``SEVERITIES``.
        length: Whether the strength is in pixels of an image of 32, and grows with the image.
    """

    change: Change
    levels: tuple[float, float, float, float, float]
    length: bool = False


KINDS = {
    "gaussian_noise": Corruption(gaussian_noise, (0.02, 0.035, 0.05, 0.07, 0.1)),
    "shot_noise": Corruption(shot_noise, (1500.0, 700.0, 350.0, 170.0, 80.0)),
    "impulse_noise": Corruption(impulse_noise, (0.005, 0.01, 0.02, 0.04, 0.07)),
    "gaussian_blur": Corruption(gaussian_blur, (0.4, 0.55, 0.7, 0.85, 1.05), length=True),
    "defocus_blur": Corruption(defocus_blur, (0.6, 0.8, 1.0, 1.25, 1.5), length=True),
    "motion_blur": Corruption(motion_blur, (1.0, 1.75, 2.5, 3.5, 5.0), length=True),
    "brightness": Corruption(brightness, (0.1, 0.2, 0.3, 0.4, 0.5)),
    "contrast": Corruption(contrast, (0.7, 0.5, 0.4, 0.3, 0.22)),
    "fog": Corruption(fog, (0.2, 0.35, 0.45, 0.55, 0.65)),
    "occlusion": Corruption(occlusion, (0.15, 0.22, 0.3, 0.38, 0.46)),
    "pixelate": Corruption(pixelate, (0.92, 0.84, 0.75, 0.65, 0.5)),
    "jpeg": Corruption(jpeg, (70.0, 45.0, 28.0, 16.0, 9.0)),
    "rotation": Corruption(rotation, (6.0, 12.0, 18.0, 25.0, 33.0)),
    "elastic": Corruption(elastic, (0.4, 0.7, 1.0, 1.35, 1.7), length=True),
}

CORRUPTIONS = tuple(KINDS)
"""The names of all corruptions."""
