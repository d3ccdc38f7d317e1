"""Noise of each pixel on its own."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground import probes


def gaussian_noise(
    x: Float[Tensor, "n ch h w"], std: float, generator: torch.Generator | None
) -> Float[Tensor, "n ch h w"]:
    """Noise of one size everywhere, x + std ε, as of a sensor in the dark."""
    return x + std * probes.gaussian(x.shape, like=x, generator=generator)


def shot_noise(
    x: Float[Tensor, "n ch h w"], photons: float, generator: torch.Generator | None
) -> Float[Tensor, "n ch h w"]:
    """Counts instead of intensities, Poisson(photons x) / photons; black stays black.

    Drawn on the generator's device, as ``probes`` does.
    """
    device = probes.device_of(generator)
    return torch.poisson((photons * x).to(device), generator=generator).to(x) / photons


def impulse_noise(
    x: Float[Tensor, "n ch h w"], share: float, generator: torch.Generator | None
) -> Float[Tensor, "n ch h w"]:
    """A share of the numbers replaced, half of them by 0 and half by 1."""
    u = uniform(x.shape, like=x, generator=generator)
    return x.masked_fill(u < 0.5 * share, 0.0).masked_fill(u > 1 - 0.5 * share, 1.0)


def uniform(shape: torch.Size | list[int], *, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform numbers in [0, 1], made from normal probes so that a seed means the same on every device."""
    return torch.special.ndtr(probes.gaussian(shape, like=like, generator=generator))
