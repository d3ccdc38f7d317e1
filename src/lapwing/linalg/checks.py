"""What the entries and eigenvalues of a matrix must be before anything is computed from them."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import NumericalError
from lapwing.ground.precision import WIDE, wide, wide_like

TILE = 256
"""Rows and columns of a matrix that are read together with their mirror."""


def positive(eigenvalues: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Return the eigenvalues if all are positive; raise naming the smallest otherwise."""
    return _bounded(eigenvalues, bool((eigenvalues > 0).all()), "a positive definite matrix")


def nonnegative(eigenvalues: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Return the eigenvalues if none is negative; raise naming the smallest otherwise."""
    return _bounded(eigenvalues, bool((eigenvalues >= 0).all()), "a positive semi-definite matrix")


def _bounded(eigenvalues: Tensor, holds: bool, expected: str) -> Tensor:
    if not holds:
        raise NumericalError(
            expected,
            f"smallest eigenvalue {eigenvalues.min().item():.3g} (largest {eigenvalues.max().item():.3g})",
            "a larger prior precision, or operator.shifted(s) with a larger s",
        )
    return eigenvalues


def finite(matrix: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return the matrix if every entry is finite; raise otherwise (LAPACK answers NaN with wrong numbers)."""
    if bool(matrix.detach().sum().isfinite()):  # it copies nothing; a sum may overflow where no entry does
        return matrix
    bad = (~matrix.isfinite()).sum().item()
    if bad:
        raise NumericalError(
            "a matrix of finite numbers",
            f"{bad} of {matrix.numel()} entries NaN or infinite",
            "inputs of size 1, finite data and weights, or float64",
        )
    return matrix


def is_symmetric(matrix: Float[Tensor, "m m"]) -> bool:
    """Whether a matrix in float64 is symmetric but for the rounding of the products it was added up of.

    Told by one product with it and one with its mirror, which read it as it lies: no for one that is not finite, or has
    a graph, of which ``symmetric`` says more.

    Args:
        matrix: The matrix.

    Example:
        >>> is_symmetric(torch.eye(2).double()), is_symmetric(torch.ones(2, 2).double().triu())
        (True, False)
    """
    if matrix.dtype != WIDE or matrix.requires_grad or not len(matrix):
        return False
    rows = len(matrix)
    column = torch.arange(1, rows + 1, dtype=matrix.dtype, device=matrix.device).sin_()
    apart = (matrix @ column - matrix.mT @ column).abs().max()
    largest = matrix.diagonal().abs().max()
    return bool(apart <= rows * torch.finfo(matrix.dtype).eps * largest)


def symmetric(
    matrix: Float[Tensor, "*batch m m"],
    found: Float[Tensor, "*batch m m"] | None = None,
    *,
    epsilon: float | None = None,
) -> Float[Tensor, "*batch m m"]:
    """The symmetric part in float64; raise where the rest is more than rounding, or not finite.

    A tile and its mirror at a time, so that each is read from memory once.

    Args:
        matrix: The matrix.
        found: Written over; it may be the matrix. ``None`` for a tensor of its own.
        epsilon: Relative rounding of its entries; ``None`` for that of its dtype.
    """
    if found is None:
        found = torch.empty(matrix.shape, **wide_like(matrix))
    skew = matrix.detach().new_zeros(())
    size = matrix.detach().new_zeros(())
    tiles = [slice(start, start + TILE) for start in range(0, matrix.shape[-1], TILE)]
    for i, rows in enumerate(tiles):
        for columns in tiles[: i + 1]:
            tile = matrix[..., rows, columns]
            mirror = matrix[..., columns, rows].mT
            skew = torch.maximum(skew, (tile.detach() - mirror.detach()).abs_().max())
            size = torch.maximum(size, torch.linalg.vector_norm(tile.detach(), torch.inf))
            mean = torch.add(wide(tile), wide(mirror)).div_(2)
            found[..., rows, columns] = mean
            found[..., columns, rows] = mean.mT
    apart = skew.item()
    largest = size.item()
    rounding = torch.finfo(matrix.dtype).eps if epsilon is None else epsilon
    if not apart <= rounding**0.5 * largest < torch.inf:
        finite(matrix)
        raise NumericalError(
            "a symmetric matrix",
            f"entries that differ from their mirror by up to {apart:.3g} (largest entry {largest:.3g})",
            "(M + M.mT) / 2 if the difference is meant to be noise",
        )
    return found
