"""Cholesky factors of dense matrices, in their place where they are large."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import NumericalError
from lapwing.ground.precision import wide
from lapwing.linalg.checks import symmetric

PIVOT = 10 * torch.finfo(torch.float64).eps
"""Part of the largest entry that the least pivot of a factor is more than."""

LARGE = 2000
"""Rows from which a factor on a processor is SciPy's, whose LAPACK works in place and takes its own threads."""


def cholesky_or_none(matrix: Float[Tensor, "d d"], large: int = LARGE) -> Float[Tensor, "d d"] | None:
    """The lower Cholesky factor, in the matrix's place where it is large; ``None`` of what is not positive definite."""
    if matrix.device.type != "cpu" or matrix.requires_grad or len(matrix) < large:
        lower, failed = torch.linalg.cholesky_ex(matrix)
        return None if bool(failed) else lower
    from scipy.linalg import get_lapack_funcs  # an import that a small factor does not make up for

    (factorise,) = get_lapack_funcs(("potrf",), (matrix.numpy(),))
    lower, failed = factorise(matrix.numpy().T, lower=1, clean=1, overwrite_a=1)  # by columns, as LAPACK has it
    return None if failed else torch.from_numpy(lower)


def cholesky(matrix: Float[Tensor, "d d"], large: int = LARGE) -> Float[Tensor, "d d"]:
    """The lower Cholesky factor L in float64, in the place of a matrix that is large and in float64.

    Raises:
        NumericalError: If the matrix is not symmetric, or has a pivot that is rounding.
    """
    largest = float(matrix.diagonal().max())
    written_to = matrix if matrix.dtype == torch.float64 else None
    lower = cholesky_or_none(symmetric(matrix, written_to), large)
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
        _check_pivots(int(failed))
        solved = torch.cholesky_solve(block, lower)
        return torch.cholesky_inverse(lower), solved, 2 * float(lower.diagonal().log().sum())
    from scipy.linalg import get_lapack_funcs  # a first fit needs no SciPy

    factorise, solve, invert = get_lapack_funcs(("potrf", "potrs", "potri"), (matrix.numpy(),))
    held = matrix.numpy().T  # by columns, as LAPACK has it
    held, failed = factorise(held, lower=1, overwrite_a=1, clean=0)
    _check_pivots(failed)
    solved = torch.from_numpy(solve(held, block.numpy(), lower=1)[0])
    logdet = 2 * float(wide(torch.from_numpy(held.diagonal().copy())).log().sum())
    held, _ = invert(held, lower=1, overwrite_c=1)
    return torch.from_numpy(held.T), solved, logdet


def _check_pivots(failed: int) -> None:
    if failed:
        raise NumericalError("a positive definite matrix", f"a minor of {failed} rows that is not", "a larger shift")
