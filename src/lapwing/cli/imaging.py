"""An image of one's own scan with error bars: a deep image prior, made linear and tuned."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing import ct
from lapwing.ground import probes
from lapwing.ground.errors import ConfigError
from lapwing.tuning import EM, tune


@final
@dataclass(frozen=True)
class ImagingEffort:
    """How much is done for error bars of an image, and for a proposal.

    Args:
        channels: Of the U-net.
        steps: Of its fit, at most.
        samples: Draws of the image.
        draws: By which angles are judged.
    """

    channels: int = 8
    steps: int = 1500
    samples: int = 64
    draws: int = 500


def imaged(
    operator: ct.Projector,
    sinogram: Float[Tensor, " rows"],
    noise_std: float | Float[Tensor, " rows"],
    effort: ImagingEffort,
    *,
    generator: torch.Generator,
    progress: bool | None,
) -> tuple[ct.Reconstruction, ct.ImagePosterior]:
    """The image of a U-net fitted to one sinogram, of attenuations about 1, and its error bars, tuned by EM.

    Args:
        operator: T.
        sinogram: What was measured, flat.
        noise_std: Standard deviation of its noise, or that of each ray.
        effort: How much is done.
        generator: Source of randomness; what has a seed takes that of the generator.
        progress: Whether to show progress bars; ``None`` for after two seconds, in a terminal.
    """
    net = ct.UNet(channels=effort.channels, generator=generator)
    seed = generator.initial_seed()
    z = probes.gaussian((1, 1, *operator.geometry.image), like=sinogram, generator=generator)
    prior = ct.DeepImagePrior(tv=3.0, rate=5e-3, steps=effort.steps, patience=400, seed=seed)
    found = prior.fit(net, z, operator, sinogram, noise_std=noise_std, progress=progress)
    posterior = ct.ImagePosterior.of(
        found.network, z, operator, sinogram, noise_std=noise_std, samples=effort.samples, seed=seed
    )
    return found, tune(posterior, EM(samples=4, steps=6, noise=False), progress=progress)


def common_noise(noise_std: float | Float[Tensor, "..."]) -> float:
    """One standard deviation for all rays: the root of the mean of their variances.

    Args:
        noise_std: That of all, or of each.
    """
    return float(noise_std.square().mean().sqrt()) if isinstance(noise_std, Tensor) else noise_std


def check_one_slice(geometry: ct.Geometry) -> None:
    """Refuses a scan of several slices: the network makes one image.

    Raises:
        ConfigError: Naming how many there are.
    """
    if geometry.slices > 1:
        raise ConfigError("a scan of one slice", f"{geometry.slices} slices", "the slice that matters most: --slice 0")


def divisible(pixels: tuple[int, int]) -> tuple[int, int]:
    """The sides of an image, rounded up to what the U-net divides by.

    Args:
        pixels: Height and width.
    """
    divisor = ct.UNet(channels=4).divisor
    height, width = (divisor * math.ceil(side / divisor) for side in pixels)
    return height, width


def attenuation_of(sinogram: Float[Tensor, " rows"], geometry: ct.Geometry) -> float:
    """About the mean attenuation along the longest ray, the unit in which an image is about 1.

    Args:
        sinogram: What was measured.
        geometry: Where its rays run.
    """
    return float(sinogram.abs().max()) / (max(geometry.pixels) * geometry.pixel_size)
