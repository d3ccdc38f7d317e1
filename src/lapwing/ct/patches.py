"""How near an image is to the truth, and how likely it is under draws, patch by patch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lapwing.ground.data.checks import check_finite
from lapwing.ground.data.inputs import Array, as_tensor
from lapwing.ground.errors import NumericalError, ShapeError, check_count
from lapwing.ground.precision import wide

FLOOR = 1e-6
"""Variance that every pixel has at least, over the squared range of the true image."""


def patch_covariance(deviations: Float[Tensor, "s m"]) -> Float[Tensor, "m m"]:
    """``1/2k Σ_j [diag(x_j²) + x_j x_jᵀ]``: variances as they are, covariances halved (Antorán 2024, section 7.3.5).

    Halved, the estimate from few draws stays positive definite, and pixels that covary by chance do so less.

    Args:
        deviations: Draws' deviations from the mean.

    Example:
        >>> patch_covariance(torch.tensor([[1.0, 1.0], [-1.0, -1.0]]))
        tensor([[1.0000, 0.5000],
                [0.5000, 1.0000]])
    """
    covariance = 0.5 * deviations.mT @ deviations / len(deviations)
    return covariance + torch.diag(covariance.diagonal())


def tiles(shape: Sequence[int], size: int) -> Iterator[Int[Tensor, " m"]]:
    """Flat pixels of patches ``size`` wide in every dimension, which cover an image; those at the end may be smaller.

    Args:
        shape: Of the image.
        size: Side of a patch, in pixels.

    Example:
        >>> [patch.tolist() for patch in tiles((2, 3), 2)]
        [[0, 1, 3, 4], [2, 5]]
    """
    parts = [torch.arange(math.prod(shape)).view(*shape)]
    for axis in range(len(shape)):
        parts = [piece for part in parts for piece in part.split(size, dim=axis)]
    return (part.flatten() for part in parts)


def log_density(
    mean: Float[Tensor, "*space"],
    deviations: Float[Tensor, "s pixels"],
    truth: Float[Tensor, "*space"],
    *,
    size: int = 1,
    mask: Bool[Tensor, "*space"] | None = None,
) -> float:
    """Log density of the true image under Gaussian patches, nats a pixel; ``size=1`` is that of single pixels.

        1/N Σ_patches log N(x; x̃, K̂ + 1e-6 (max x - min x)² I)               (Antorán 2024, section 7.4)

    In another unit of the image it changes by the logarithm of the unit alone.

    Args:
        mean: The reconstruction.
        deviations: Draws' deviations from it, as of ``ImagePosterior.deviations``.
        truth: The true image; a constant one adds nothing to variances.
        size: Side of a patch, in pixels; wider than 10 needs more than a thousand draws.
        mask: Pixels that count; ``None`` for all.

    Raises:
        DataError: If the images are not finite.
        NumericalError: If draws are not finite, or all the same where the true image is constant.
        ShapeError: If images, draws and mask do not fit, or no pixel counts.

    Cost:
        ``size⁶`` a patch, in float64.
    """
    check_count("size", size)
    if truth.shape != mean.shape or deviations.shape[1] != mean.numel():
        came = f"{list(truth.shape)} and draws of {deviations.shape[1]} pixels"
        raise ShapeError(f"a truth of shape {list(mean.shape)} and draws of it", came, "posterior.deviations")
    if not bool(deviations.isfinite().all()):
        raise NumericalError("finite draws of the image", "NaN or infinity", "a stronger prior, or float64")
    error = wide(truth - mean).flatten()
    check_finite(error, "images", "the reconstruction of a finite sinogram")
    counted = torch.ones_like(error, dtype=torch.bool) if mask is None else _checked(mask, mean.shape).flatten()
    floor = FLOOR * float(truth.max() - truth.min()) ** 2
    total = 0.0
    for patch in tiles(mean.shape, size):
        index = patch.to(error.device)
        index = index[counted[index]]
        if not len(index):
            continue
        covariance = patch_covariance(wide(deviations[:, index]))
        covariance.diagonal().add_(floor)
        factor, failed = torch.linalg.cholesky_ex(covariance)
        if int(failed):
            raise NumericalError(
                "draws whose patches have a density", "a covariance that is not positive", "more draws"
            )
        solved = torch.linalg.solve_triangular(factor, error[index, None], upper=False)
        total -= 0.5 * float(solved.square().sum()) + float(factor.diagonal().log().sum())
        total -= 0.5 * len(index) * math.log(2 * math.pi)
    return total / int(counted.sum())


def _checked(mask: Tensor, shape: torch.Size) -> Tensor:
    """A mask of an image with at least a pixel that counts."""
    if mask.dtype != torch.bool or mask.shape != shape or not bool(mask.any()):
        came = f"{mask.dtype} {list(mask.shape)}, {int(mask.count_nonzero())} of it not zero"
        raise ShapeError(f"a boolean mask {list(shape)} with a pixel that counts", came, "mask > 0, or mask=None")
    return mask


def psnr(
    image: Float[Tensor, "*space"] | Array | list[Any], truth: Float[Tensor, "*space"] | Array | list[Any]
) -> float:
    """Peak signal-to-noise ratio ``20 log₁₀ range - 10 log₁₀ MSE``, dB, with the range of the truth.

    Args:
        image: A reconstruction.
        truth: The true image.

    Raises:
        ShapeError: If they are of two shapes.

    Example:
        >>> round(psnr(torch.tensor([0.1, 0.9]), torch.tensor([0.0, 1.0])), 1)
        20.0
    """
    image = as_tensor(image)
    truth = as_tensor(truth)
    if image.shape != truth.shape:
        raise ShapeError(
            f"an image {list(truth.shape)}, as the truth is", f"{list(image.shape)}", "image.view_as(truth)"
        )
    error = float(wide(image - truth).square().mean())
    span = float(truth.max() - truth.min())
    if not (error and span):
        return -math.inf if error else math.inf
    return 10 * math.log10(span**2 / error)
