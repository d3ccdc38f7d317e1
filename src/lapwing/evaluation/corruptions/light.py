"""Light that is too much, too little, or kept from the lens."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from lapwing.evaluation.corruptions.noise import uniform
from lapwing.ground import probes


def brightness(
    x: Float[Tensor, "n ch h w"], amount: float, generator: torch.Generator | None = None
) -> Float[Tensor, "n ch h w"]:
    """More light everywhere, x + amount; what exceeds 1 is lost."""
    return x + amount


def contrast(
    x: Float[Tensor, "n ch h w"], factor: float, generator: torch.Generator | None = None
) -> Float[Tensor, "n ch h w"]:
    """Differences from the image's mean times ``factor``."""
    mean = x.mean((1, 2, 3), keepdim=True)
    return mean + factor * (x - mean)


def fog(x: Float[Tensor, "n ch h w"], density: float, generator: torch.Generator | None) -> Float[Tensor, "n ch h w"]:
    """Mixed with bright haze in clouds of every size, (1 - density) x + density · haze with haze in [½, 1]."""
    n, _, h, w = x.shape
    haze = torch.zeros(n, 1, h, w, dtype=x.dtype, device=x.device)
    for octave in range(4):
        cells = probes.gaussian([n, 1, 2 ** (octave + 1), 2 ** (octave + 1)], like=x, generator=generator)
        haze = haze + 0.6**octave * functional.interpolate(cells, (h, w), mode="bilinear", align_corners=True)
    low, high = haze.amin((2, 3), keepdim=True), haze.amax((2, 3), keepdim=True)
    haze = 0.5 + 0.5 * (haze - low) / (high - low).clamp(min=torch.finfo(x.dtype).tiny)
    return (1 - density) * x + density * haze


def occlusion(
    x: Float[Tensor, "n ch h w"], share: float, generator: torch.Generator | None
) -> Float[Tensor, "n ch h w"]:
    """A grey square at a random place, its side ``share`` of the shorter side of the image."""
    n, _, *sides = x.shape
    size = max(1, round(share * min(sides)))
    places = uniform([2, n], like=x, generator=generator)
    inside: list[Tensor] = []
    for side, place in zip(sides, places, strict=True):
        start = (place * (side - size + 1)).floor().clamp(max=side - size)[:, None]
        at = torch.arange(side, device=x.device)
        inside.append((at >= start) & (at < start + size))
    return x.masked_fill((inside[0][:, :, None] & inside[1][:, None, :])[:, None], 0.5)
