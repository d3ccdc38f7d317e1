"""Filtered back-projection: the inverse of the Radon transform, angle by angle."""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias, get_args

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from lapwing.ct.beams import FanBeam, axes_of
from lapwing.ct.geometry import Geometry
from lapwing.ground.data.inputs import Array, as_tensor
from lapwing.ground.errors import DataError, NumericalError, check_option

Window: TypeAlias = Literal["ramp", "shepp-logan", "cosine", "hamming", "hann"]
"""What the ramp filter is multiplied by: nothing, or less and less at high frequencies."""


def filtered_back_projection(
    sinogram: Shaped[Tensor, "*shape"] | Array | list[Any], geometry: Geometry, window: Window = "ramp"
) -> Float[Tensor, "*image"]:
    """Filter each projection by a ramp, and smear it back along its rays (Kak and Slaney 1988, §3.3 and §3.4.2).

    ``f(x) = π Σ_θ w_θ U_θ(x)⁻² q_θ(s_θ(x))`` with q the projection times the cosine of its ray's angle to the middle
    one, convolved with the ramp of Ram and Lak; U = 1 and cosine 1 where rays are parallel. Between bins q is linear.
    An angle's weight w is half the gaps to its neighbours, over the half turn, or whole one of fans, that they make up.

    Args:
        sinogram: Of the geometry's shape, or flat.
        geometry: Where its rays run; angles over a half turn or more, for fans over a whole one.
        window: Of the filter.

    Returns:
        The image, in the dtype and on the device of the sinogram; half precision is computed in float32.

    Raises:
        ConfigError: If there is no such window.
        DataError: If a ray is not finite, or the angles leave out a part of the turn.
        NumericalError: If the image does not fit the dtype of the sinogram.
        ShapeError: If the sinogram is not of the geometry.

    Cost:
        A few operations an angle and pixel; memory of a few images.

    Example:
        >>> from lapwing.ct.beams import Parallel2d
        >>> from lapwing.ct.geometry import equidistant
        >>> from lapwing.ct.phantoms import Ellipses
        >>> geometry = Parallel2d(pixels=(32, 32), angles=equidistant(40))
        >>> disc = Ellipses(((1.0, 9.0, 9.0, 0.0, 0.0, 0.0),))
        >>> image = filtered_back_projection(disc.sinogram(geometry), geometry)
        >>> image.shape, round(float(image[12:20, 12:20].mean()), 2)
        (torch.Size([32, 32]), 1.0)
    """
    check_option("window", window, get_args(Window))
    weights = _weights(geometry)
    angles = len(geometry.theta)
    spacing = geometry.spacing / geometry.magnification
    sinogram = as_tensor(sinogram)
    measured = sinogram if sinogram.is_floating_point() else sinogram.to(torch.get_default_dtype())
    y = geometry.check(measured).view(angles, geometry.slices, geometry.bins)
    y = y.to(torch.promote_types(y.dtype, torch.float32))
    largest = y.abs().max().clamp_min(torch.finfo(y.dtype).tiny)
    y = y / largest  # that no sum of large numbers overflows
    _, direction = geometry.rays()
    _, middle = axes_of(geometry.theta)
    cosine = (direction * middle[:, None]).sum(-1)
    filtered = _filter(y * cosine[:, None].to(y), spacing, window)
    total = y.new_zeros(geometry.slices, math.prod(geometry.pixels))
    for angle in range(angles):
        seen, magnified = (part[0].to(y) for part in geometry.select([angle]).shadow(geometry.points))
        at = (seen - float(geometry.positions[0])) / geometry.spacing
        total += weights[angle] * _between(filtered[angle], at) * (magnified / geometry.magnification).square()
    image = (total * (math.pi / angles) * largest).to(measured.dtype).view(geometry.image)
    if not bool(image.isfinite().all()):
        came = "one with larger numbers"
        raise NumericalError(
            f"an image that fits {measured.dtype}", came, "sinogram.double(), or a larger unit of length"
        )
    return image


def _filter(
    projections: Float[Tensor, "*angles bins"], spacing: float, window: Window
) -> Float[Tensor, "*angles bins"]:
    """Convolution with the ramp, sampled in space (Kak and Slaney, eq. 61): h(0) = 1/4, h(odd n) = −1/(πn)²."""
    bins = projections.shape[-1]
    size = max(64, 2 ** math.ceil(math.log2(2 * bins)))
    n = torch.fft.fftfreq(size, 1 / size, dtype=torch.float64)
    kernel = torch.where(n % 2 == 1, -1 / (math.pi * n).square(), 0.0)
    kernel[0] = 0.25
    frequency = torch.fft.rfftfreq(size, dtype=torch.float64)
    weight = {
        "ramp": torch.ones_like(frequency),
        "shepp-logan": torch.sinc(frequency),
        "cosine": (math.pi * frequency).cos(),
        "hamming": 0.54 + 0.46 * (2 * math.pi * frequency).cos(),
        "hann": 0.5 + 0.5 * (2 * math.pi * frequency).cos(),
    }[window]
    response = (torch.fft.rfft(kernel).real * weight / spacing).to(projections)
    return torch.fft.irfft(torch.fft.rfft(projections, size) * response, size)[..., :bins]


def _between(rows: Float[Tensor, "slices bins"], at: Float[Tensor, " n"]) -> Float[Tensor, "slices n"]:
    """Rows read between their entries; 0 outside."""
    last = rows.shape[1] - 1
    below = at.floor().clamp(0, max(last - 1, 0)).long()
    above = (below + 1).clamp(max=last)
    fraction = at - below
    read = (1 - fraction) * rows[:, below] + fraction * rows[:, above]
    return read * ((at >= 0) & (at <= last))


def _weights(geometry: Geometry) -> list[float]:
    """Of each angle, relative to equal ones: half the gaps to its neighbours, shared by angles that are the same.

    Fans must go all the way round: their rays are measured once or twice where they do not, and would need weights.
    """
    whole, full = (2, "equidistant(n, 2 * torch.pi)") if isinstance(geometry, FanBeam) else (1, "equidistant(n)")
    parts = (geometry.theta / (whole * math.pi) % 1).round(decimals=12) % 1  # 1 is 0, and equal ones are exactly so
    places, which, times = parts.unique(return_inverse=True, return_counts=True)
    gaps = torch.cat([places, places[:1] + 1]).diff()
    gap = float(gaps.max())
    if gap > max(1 / 4, 2 / len(places)) + 1e-6:
        raise DataError(
            f"angles of {'a fan beam over a whole' if whole == 2 else 'parallel beams over a half'} turn",
            f"none over {gap * whole * 180:.0f}° of it",
            f"{full}, or tv_reconstruction or a deep image prior, which need no such turn",
        )
    shares = (gaps + gaps.roll(1)) / (2 * times)
    return (len(parts) * shares[which]).round(decimals=6).tolist()  # exactly 1 where angles are equidistant
