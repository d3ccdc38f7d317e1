"""Noise of sinograms: Gaussian, or that of counted photons; and how large it is."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.data import Array, as_tensor
from lapwing.ground.errors import DataError, ShapeError, check_positive
from lapwing.methods.ct.geometry import check_rays, check_real, place


def add_gaussian(
    sinogram: Float[Tensor, "*shape"] | Array | list[Any],
    fraction: float = 0.05,
    *,
    generator: torch.Generator | None = None,
) -> tuple[Float[Tensor, "*shape"], float]:
    """A sinogram with normal noise whose standard deviation is a fraction of the mean of ``|T x|``.

    Args:
        sinogram: T x without noise.
        fraction: Of the mean absolute value.
        generator: Source of randomness.

    Returns:
        The noisy sinogram, and the standard deviation; a likelihood of it is ``Gaussian(std**-2)``.

    Raises:
        DataError: If a ray is not finite.
        ShapeError: If there is no ray.
        UnsupportedError: If the sinogram is not of real numbers.

    Example:
        >>> y, std = add_gaussian(torch.full((3, 4), 2.0), 0.1)
        >>> round(std, 6)
        0.2
    """
    check_positive("fraction", fraction, "0.05")
    sinogram = as_tensor(sinogram)
    check_real(sinogram, "sinogram")
    check_rays(sinogram)
    std = fraction * float(sinogram.abs().mean())
    return sinogram + std * probes.gaussian(sinogram.shape, like=sinogram, generator=generator), std


def count_photons(
    sinogram: Float[Tensor, "*shape"] | Array | list[Any], photons: float, *, generator: torch.Generator | None = None
) -> Float[Tensor, "*shape"]:
    """Photons that a detector counts behind an object: Poisson, ``N ~ Poisson(I₀ exp(−T x))``, by Beer and Lambert.

    Args:
        sinogram: T x, without unit.
        photons: I₀, those that a bin would count without the object.
        generator: Source of randomness.
    """
    check_positive("photons", photons, "1e4")
    sinogram = as_tensor(sinogram)
    check_rays(sinogram)
    return probes.poisson(photons * torch.exp(-sinogram), generator=generator)


def log_transform(
    counts: Shaped[Tensor, "*shape"] | Array | list[Any], photons: float | Float[Tensor, "*flat"] | Array | list[Any]
) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
    """The sinogram that counted photons are a measurement of, and its variance.

    ``y = log I₀ − log(N + ½)`` has the mean T x, and ``1 / (N + ½)`` its variance, up to terms of order ``1/N²``: the
    half takes the bias away, and keeps rays that counted nothing finite.

    Args:
        counts: N, ``[angles, bins]``, corrected for the dark current.
        photons: I₀, one number, or that of each bin (the flat field).

    Returns:
        The sinogram and the variance of each ray.

    Raises:
        DataError: If counts are negative or not finite, with the place of the first, or photons are not positive.
        ShapeError: If photons are neither one number nor of each bin.

    Example:
        >>> y, variance = log_transform(torch.tensor([[15.5]]), 16.0)
        >>> y.tolist(), variance.tolist()
        ([[0.0]], [[0.0625]])
    """
    counts = as_tensor(counts)
    counts = counts if counts.is_floating_point() else counts.to(torch.get_default_dtype())
    check_rays(counts)
    negative = (counts < 0).nonzero()
    if len(negative):
        got = f"{len(negative)} negative ones of {counts.numel()}, the first at {place(negative[0])}"
        raise DataError("counts of photons", got, "counts.clamp(min=0) if a dark image was taken off, else raw counts")
    open_beam = torch.as_tensor(photons).to(counts)
    sides = zip(reversed(open_beam.shape), reversed(counts.shape), strict=False)
    if open_beam.ndim > counts.ndim or any(side not in (1, count) for side, count in sides):
        expected = f"photons as one number, or of each bin of counts {list(counts.shape)}"
        raise ShapeError(expected, f"{list(open_beam.shape)}", "the flat field of these bins")
    if not bool((open_beam > 0).all()):
        raise DataError("positive photons", f"{float(open_beam.min()):g}", "the counts of a bin without an object")
    more = counts + 0.5
    return open_beam.log() - more.log(), 1 / more


def noise_level(sinogram: Float[Tensor, "*angles bins"] | Array | list[Any]) -> float:
    """The standard deviation of the noise of a sinogram, from itself.

    Fourth differences along the detector, ``d = y₋₂ − 4y₋₁ + 6y₀ − 4y₁ + y₂``, see little of a smooth projection and
    white noise √70 times: their median size, over 0.6745 √70, is not moved by the few edges of an object. Where
    noise is little beside what fine structure leaves in these differences, it comes out too large.

    Args:
        sinogram: At least 5 bins.

    Raises:
        DataError: If it is not finite.
        ShapeError: If it has fewer bins, or no ray.

    Example:
        >>> y = 3 * torch.randn(50, 200, generator=torch.Generator().manual_seed(0))
        >>> round(noise_level(y), 1)
        3.0
    """
    sinogram = as_tensor(sinogram)
    if sinogram.ndim < 1 or sinogram.shape[-1] < 5:
        raise ShapeError("a sinogram of at least 5 bins", f"{list(sinogram.shape)}", "the noise you know of")
    check_rays(sinogram)
    return float(sinogram.double().diff(n=4).abs().median()) / (0.6744898 * 70**0.5)
