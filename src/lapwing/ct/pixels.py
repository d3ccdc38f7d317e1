"""Images of Gaussian pixels: a prior in the place of a network's, and the one that a sinogram makes likeliest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ct.observed import Measurement, like_of_measurement
from lapwing.ground.data.checks import check_finite
from lapwing.ground.data.inputs import Array, as_tensor
from lapwing.ground.errors import ConfigError, ShapeError, check_count, check_positive
from lapwing.ground.precision import wide
from lapwing.linear.model import Matrix

LENGTHSCALES = (None, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Length-scales that are tried, in pixels; ``None`` for independent pixels."""

BLOCK = 512
"""Columns of a correlation matrix that are multiplied together."""


def pixel_prior(shape: Sequence[int], lengthscale: float | None = None, *, like: Tensor | None = None) -> Matrix:
    """An image whose pixels are Gaussian: independent, or with the Matérn-1/2 correlation ``exp(-distance / ψ)``.

    A ``LinearModel`` with standard normal weights, in place of a network's.

    Args:
        shape: Of the image.
        lengthscale: ψ, in pixels; ``None`` for independent pixels.
        like: Tensor whose device and dtype it takes; ``None`` for float32 on the CPU.

    Raises:
        ConfigError: If the length-scale is not positive, or a side has no pixel.

    Cost:
        Memory ``pixels²`` numbers; with a length-scale ``pixels³`` multiplications in float64.

    Example:
        >>> pixel_prior((2, 3), 1.0).features.shape
        torch.Size([1, 2, 3, 1, 6])
    """
    _check_lengths([lengthscale])
    _check_sides(shape)
    tensor = torch.zeros(()) if like is None else like
    points = wide(torch.ones(*shape).nonzero())
    root = torch.linalg.cholesky(_correlation(points, points, lengthscale))
    return Matrix(root.to(tensor).view(1, *shape, 1, -1))


@final
@dataclass(frozen=True)
class PixelFit:
    """How the pixels of an image vary, and how likely that makes a sinogram.

    Args:
        lengthscale: ψ, in pixels; ``None`` for independent ones.
        variance: Of a pixel.
        log_evidence: Of the sinogram, nats.
    """

    lengthscale: float | None
    variance: float
    log_evidence: float


def fit_pixels(
    operator: Measurement,
    sinogram: Float[Tensor, " rows"] | Array | list[Any],
    shape: Sequence[int],
    *,
    noise_std: float,
    lengthscales: Sequence[float | None] = LENGTHSCALES,
) -> PixelFit:
    """The Gaussian pixels that make a sinogram likeliest: ``max_ψ,v log N(y; 0, v T R_ψ Tᵀ + σ² I)``.

    Antorán (2024, section 7.6) finds that length-scales of this prior come out long, and that its designs are no better
    than random angles: it is there to compare with.

    Args:
        operator: T of the angles that are measured.
        sinogram: y, flat.
        shape: Of the image.
        noise_std: σ, in the units of y.
        lengthscales: Those that are tried.

    Raises:
        ConfigError: If there is no length-scale to try, or one is not positive.
        DataError: If a measurement is not finite.
        ShapeError: If operator, sinogram and image do not fit.

    Cost:
        For every length-scale, products of T with the pixels² correlations and the eigenvalues of a rows × rows
        matrix; memory ``rows · pixels`` numbers.

    Example:
        >>> from lapwing.ct.operators import measurement
        >>> y = torch.tensor([2.0, -2.0, 2.0, -2.0])
        >>> found = fit_pixels(measurement(torch.eye(4)), y, (1, 4), noise_std=0.1)
        >>> found.lengthscale, round(found.variance, 2)
        (None, 3.99)
    """
    check_positive("noise_std", noise_std, "0.05, one number for all rays")
    _check_lengths(lengthscales)
    _check_sides(shape)
    sinogram = as_tensor(sinogram, like=like_of_measurement(operator))
    check_finite(sinogram, "measurements", "leaving out the rays that have none")
    if operator.shape != (len(sinogram), math.prod(shape)):
        came = f"{len(sinogram)} measurements, an image {list(shape)} and an operator {list(operator.shape)}"
        raise ShapeError("an operator for this sinogram and image", came, "sinogram.flatten()")
    places = wide(torch.ones(*shape).nonzero())
    fits: list[PixelFit] = []
    for scale in lengthscales:
        columns = [_correlation(places, part, scale).to(sinogram) for part in places.split(BLOCK)]
        gram = operator.push(torch.cat([operator.push(block) for block in columns], 1).mT)
        values, basis = torch.linalg.eigh(0.5 * wide(gram + gram.mT))
        fits.append(_likeliest(scale, values.clamp_min(0), (basis.mT @ wide(sinogram)).square(), noise_std**2))
    return max(fits, key=lambda fit: fit.log_evidence)


def _likeliest(lengthscale: float | None, values: Tensor, squares: Tensor, noise: float) -> PixelFit:
    """The best variance, where the covariance is diagonal."""
    from scipy.optimize import minimize_scalar  # half a second to import

    def loss(log_variance: float) -> float:
        total = math.exp(log_variance) * values + noise
        return 0.5 * float((squares / total + total.log()).sum() + len(values) * math.log(2 * math.pi))

    start = math.log(float(squares.sum()) / float(values.sum()) + 1e-30)
    found: Any = minimize_scalar(loss, bounds=(start - 12, start + 6), method="bounded", options={"xatol": 1e-3})
    return PixelFit(lengthscale, math.exp(found.x), -float(found.fun))


def _check_lengths(lengthscales: Sequence[float | None]) -> None:
    """Refuses length-scales that are not positive, and none at all."""
    if not len(lengthscales):
        raise ConfigError("at least one of lengthscales=", "none", "lengthscales=(None, 4.0)")
    for scale in lengthscales:
        if scale is not None:
            check_positive("lengthscale", scale, "4.0, or None for independent pixels")


def _check_sides(shape: Sequence[int]) -> None:
    """Refuses an image without pixels."""
    if not len(shape):
        raise ConfigError("the shape of an image", "none", "shape=(16, 16)")
    for side in shape:
        check_count("shape", side, usual=16)


def _correlation(
    one: Float[Tensor, "n axes"], other: Float[Tensor, "m axes"], lengthscale: float | None
) -> Float[Tensor, "n m"]:
    distances = torch.cdist(one, other, compute_mode="donot_use_mm_for_euclid_dist")  # zeros are exact
    return wide(distances == 0) if lengthscale is None else torch.exp(-distances / lengthscale)
