"""A symmetric matrix held entry by entry."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import NumericalError
from lapwing.linalg.operator import Operator, check_shape
from lapwing.linalg.spectral import Spectral, decompose, symmetric
from lapwing.linalg.structured import Diagonal, Structured

PIVOT = 10 * torch.finfo(torch.float64).eps
"""Part of the largest entry that the least pivot of a factor is more than."""

LARGE = 2000
"""Rows from which a factor on a processor is SciPy's, whose LAPACK works in place and takes its own threads."""


@final
@dataclass(frozen=True, eq=False, repr=False)
class Dense(Structured):
    """The matrix ``scale * M + shift * I`` for a symmetric ``M``.

    ``solve`` and ``logdet`` use the eigendecomposition of ``M`` once it is known (``eigenvalues()`` computes
    it; scaled and shifted copies share it) and a Cholesky factor until then. The roots are Cholesky factors
    either way, so a sample does not depend on what was asked before it. Where Cholesky breaks down, ``M``
    being singular up to rounding, the eigendecomposition takes over: negative eigenvalues of ``M`` that are
    rounding count as 0.

    Args:
        matrix: Symmetric ``M``, ``[d, d]``.
        scale: Factor of ``M``.
        shift: Added to the diagonal, such as a prior precision.
        known: The decomposition of ``M``, where it is at hand.
        shared: The operator that holds the decomposition of ``M``, for its scaled and shifted copies.

    Example:
        >>> gram = Dense(torch.tensor([[2.0, 2.0], [2.0, 2.0]]))
        >>> gram.shifted(1.0).solve(torch.tensor([5.0, 5.0])).tolist()
        [1.0, 1.0]
    """

    matrix: Tensor
    scale: float | Tensor = 1.0
    shift: float | Tensor = 0.0
    known: Spectral | None = field(default=None, kw_only=True)
    shared: Dense | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check the shape."""
        m = self.matrix
        check_shape(
            m,
            m.ndim == 2 and m.shape[0] == m.shape[-1],
            "a square matrix [d, d]",
            "LowRank for a root [d, r]",
        )

    def root(self) -> Operator:
        """The Cholesky factor ``L``, or ``Q √Λ`` where ``A`` is singular.

        Cost: ``d³/3`` multiplications once, then ``d²/2`` a column.
        """
        lower = self._cholesky
        if lower is None:
            return super().root()
        return self._in_float64(lambda e: lower @ e, lambda v: lower.mT @ v)

    def inverse_root(self) -> Operator:
        """``L⁻ᵀ``, by triangular solves."""
        lower = self._cholesky
        if lower is None:
            return super().inverse_root()
        return self._in_float64(
            lambda e: torch.linalg.solve_triangular(lower.mT, e, upper=True),
            lambda v: torch.linalg.solve_triangular(lower, v, upper=False),
        )

    def logdet(self) -> Float[Tensor, ""]:
        """``Σ log Λ``, or ``2 Σ log diag L``."""
        lower = None if self.decomposed else self._cholesky
        return super().logdet() if lower is None else 2 * lower.diagonal().log().sum()

    def diagonal(self) -> Float[Tensor, " d"]:
        """``scale * diag M + shift``."""
        return self.scale * self.matrix.diagonal() + self.shift

    def eigenvalues(self) -> Float[Tensor, " d"]:
        """All ``d``, ascending, float64; one ``eigh`` (``9 d³``) for this operator and all its copies."""
        return self.scale * self.spectral.spectrum + self.shift

    @property
    def weights(self) -> Float[Tensor, " w"]:
        """See ``Structured.weights``."""
        return self.scale * self.spectral.weights + self.shift

    @property
    def origin(self) -> Dense:
        """The operator of which this one is a scaled and shifted copy; where of none, itself."""
        return self.shared or self

    @cached_property
    def spectral(self) -> Spectral:
        """The eigendecomposition of ``M``, one for all scaled and shifted copies."""
        return self.known or (decompose(self.matrix) if self.shared is None else self.shared.spectral)

    @property
    def decomposed(self) -> bool:
        """Whether its eigenvectors are at hand."""
        return self.known is not None or "spectral" in vars(self.origin)

    @property
    def _like(self) -> Tensor:
        return self.matrix

    @cached_property
    def _cholesky(self) -> Float[Tensor, "d d"] | None:
        matrix = symmetric(self.matrix).mul_(self.scale)
        matrix.diagonal().add_(self.shift)
        return _factor(matrix)

    def _to_basis(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "w k"]:
        return self.spectral.into(block)

    def _from_basis(self, block: Float[Tensor, "w k"]) -> Float[Tensor, "d k"]:
        return self.spectral.out_of(block)

    def _matmat(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        return self.scale * (self.matrix @ block) + self.shift * block

    def _dense(self) -> Float[Tensor, "d d"]:
        matrix = self.scale * self.matrix
        matrix.diagonal().add_(self.shift)
        return matrix

    def _solve(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        lower = None if self.decomposed else self._cholesky
        if lower is None:
            return super()._solve(block)
        half = torch.linalg.solve_triangular(lower, block, upper=False)  # cholesky_solve would copy the factor
        return torch.linalg.solve_triangular(lower.mT, half, upper=True)

    def _affine(self, c: float | Tensor, s: float | Tensor) -> Dense:
        return replace(self, scale=c * self.scale, shift=c * self.shift + s, shared=self.origin)

    def _plus_diagonal(self, other: Diagonal) -> Dense:
        shift = None if other.values.requires_grad else other.constant
        return Dense(self._dense() + torch.diag(other.values)) if shift is None else self._affine(1.0, shift)


def _factor(matrix: Float[Tensor, "d d"]) -> Float[Tensor, "d d"] | None:
    """The lower Cholesky factor, in the matrix's place where it is large; ``None`` of what is not positive definite."""
    if matrix.device.type != "cpu" or matrix.requires_grad or len(matrix) < LARGE:
        lower, failed = torch.linalg.cholesky_ex(matrix)
        return None if bool(failed) else lower
    from scipy.linalg import get_lapack_funcs  # an import that a small factor does not make up for

    (factorise,) = get_lapack_funcs(("potrf",), (matrix.numpy(),))
    lower, failed = factorise(matrix.numpy().T, lower=1, clean=1, overwrite_a=1)  # by columns, as LAPACK has it
    return None if failed else torch.from_numpy(lower)


def factor(matrix: Float[Tensor, "d d"]) -> Float[Tensor, "d d"]:
    """The lower Cholesky factor L in float64, in the place of a matrix that is large and in float64.

    Raises:
        NumericalError: If the matrix is not symmetric, or has a pivot that is rounding.
    """
    largest = float(matrix.diagonal().max())
    lower = _factor(symmetric(matrix, matrix if matrix.dtype == torch.float64 else None))
    if lower is None or not float(lower.diagonal().min()) ** 2 > PIVOT * largest:
        got = "one that is singular to rounding"
        raise NumericalError("a positive definite precision", got, "a larger prior precision, or float64")
    return lower


def inverted(
    matrix: Float[Tensor, "d d"], block: Float[Tensor, "d k"]
) -> tuple[Float[Tensor, "d d"], Float[Tensor, "d k"], float]:
    """``A⁻¹``, ``A⁻¹ B`` and ``log det A`` of a positive definite matrix, which is overwritten.

    On a processor by SciPy's LAPACK, whose factor and inverse can be faster than torch's, in place.

    Args:
        matrix: A, symmetric, rows one after the other.
        block: B.

    Returns:
        The inverse, whose entries on and above the diagonal alone count; the solution; the log determinant.

    Raises:
        NumericalError: If the matrix is not positive definite.

    Cost:
        ``d³`` multiplications; no further memory on a processor.
    """
    if matrix.device.type != "cpu":
        lower, failed = torch.linalg.cholesky_ex(matrix)
        _check_factor(int(failed))
        solved = torch.cholesky_solve(block, lower)
        return torch.cholesky_inverse(lower), solved, 2 * float(lower.diagonal().log().sum())
    from scipy.linalg import get_lapack_funcs  # a first fit needs no SciPy

    factorise, solve, invert = get_lapack_funcs(("potrf", "potrs", "potri"), (matrix.numpy(),))
    held = matrix.numpy().T  # by columns, as LAPACK has it
    held, failed = factorise(held, lower=1, overwrite_a=1, clean=0)
    _check_factor(failed)
    solved = torch.from_numpy(solve(held, block.numpy(), lower=1)[0])
    logdet = 2 * float(torch.from_numpy(held.diagonal().copy()).double().log().sum())
    held, _ = invert(held, lower=1, overwrite_c=1)
    return torch.from_numpy(held.T), solved, logdet


def _check_factor(failed: int) -> None:
    if failed:
        raise NumericalError("a positive definite matrix", f"a minor of {failed} rows that is not", "a larger shift")
