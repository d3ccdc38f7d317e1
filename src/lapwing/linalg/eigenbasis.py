"""Eigendecompositions in float64, computed when first asked for and shared by every copy of an operator."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import NumericalError


@final
@dataclass(frozen=True, eq=False)
class Eigenbasis:
    """The decomposition ``M = Q diag(values) Qᵀ`` of a symmetric matrix: lazy, float64, at most one ``eigh``.

    Negative eigenvalues that are rounding of a positive semi-definite ``M`` (smaller than ``sqrt(eps)`` of
    the largest, with the ``eps`` of the matrix's own dtype) are set to 0. A 1-D tensor stands for a diagonal
    matrix, here and in ``vectors``: its ``Q`` is the identity, kept as ones.

    Args:
        matrix: ``[..., m, m]``, or ``[m]`` for a diagonal matrix.
    """

    matrix: Float[Tensor, "..."]

    @property
    def known(self) -> bool:
        """Whether the decomposition has been computed, so that using it costs no ``eigh``."""
        return "_eigh" in vars(self)

    @property
    def values(self) -> Float[Tensor, "*batch m"]:
        """Eigenvalues, float64; ascending, but for a diagonal matrix in its own order."""
        return self._eigh[0]

    @property
    def vectors(self) -> Float[Tensor, "..."]:
        """Eigenvectors in columns ``[..., m, m]``, float64; ones ``[m]`` for a diagonal matrix."""
        return self._eigh[1]

    @cached_property
    def _eigh(self) -> tuple[Tensor, Tensor]:
        if self.matrix.ndim == 1:
            values = finite(self.matrix).double()
            vectors = torch.ones_like(values)
        else:
            values, vectors = torch.linalg.eigh(symmetric(self.matrix))
        rounding = rounding_of(self.matrix.dtype) * values.abs().amax(-1, keepdim=True)
        return values.masked_fill((values < 0) & (values >= -rounding), 0.0), vectors


def rounding_of(dtype: torch.dtype) -> float:
    """How far from exact, relative to the largest, an entry or eigenvalue accumulated in ``dtype`` may be."""
    return torch.finfo(dtype).eps ** 0.5


def finite(matrix: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return the matrix if every entry is finite; raise otherwise (LAPACK answers NaN with wrong numbers)."""
    bad = (~matrix.isfinite()).sum().item()
    if bad:
        raise NumericalError(
            "a matrix of finite numbers",
            f"{bad} of {matrix.numel()} entries NaN or infinite",
            "inputs of size 1, finite data and weights, or float64",
        )
    return matrix


def symmetric(matrix: Float[Tensor, "*batch m m"]) -> Float[Tensor, "*batch m m"]:
    """Return the symmetric part in float64; raise where the rest is more than rounding."""
    skew = (finite(matrix) - matrix.mT).abs().max().item()
    size = matrix.abs().max().item()
    if skew > rounding_of(matrix.dtype) * size:
        raise NumericalError(
            "a symmetric matrix",
            f"entries that differ from their mirror by up to {skew:.3g} (largest entry {size:.3g})",
            "(M + M.mT) / 2 if the difference is meant to be noise",
        )
    return (matrix.double() + matrix.mT.double()) / 2


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
