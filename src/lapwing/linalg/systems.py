"""What iterations for linear systems share: checked right-hand sides, preconditioning, lengths of columns."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ConfigError, ShapeError, check_count, check_kind
from lapwing.ground.precision import wide
from lapwing.linalg.checks import finite
from lapwing.linalg.operators.base import Operator, Structured, check_operand, check_square


def check_system(
    operator: Operator, b: Float[Tensor, "d *k"], rtol: float, max_iterations: int, preconditioner: Structured | None
) -> Float[Tensor, "d k"]:
    """Refuse a system that no iteration could solve.

    Returns:
        The right-hand sides as float64 columns; ``b`` itself where it is that already.

    Raises:
        ShapeError: ``A`` is not square, ``b`` does not fit or has no column, or the preconditioner does not fit.
        UnsupportedError: ``b`` has another dtype than ``A``.
        ConfigError: ``rtol`` or ``max_iterations`` is not positive, or the preconditioner is not ``Structured``.
        NumericalError: ``b`` is not finite.
    """
    size = check_square(operator)
    if check_operand(operator, b, size).numel() == 0:
        raise ShapeError("at least one right-hand side", f"shape {list(b.shape)}", "a block [d, k] with k > 0")
    if not (math.isfinite(rtol) and rtol > 0):
        raise ConfigError("a tolerance rtol > 0", f"{rtol}", "rtol=1e-6")
    check_count("max_iterations", max_iterations, usual=1000)
    if preconditioner is not None:
        check_kind("preconditioner", preconditioner, (Structured,), "Diagonal, or LowRank(factor, base)")
        if preconditioner.shape != operator.shape:
            raise ShapeError(f"a preconditioner like {operator!r}", f"{preconditioner!r}", "one row for each of A's")
    return wide(finite(b.detach())).reshape(size, -1)


def precondition(preconditioner: Structured | None, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
    """``P⁻¹ V`` for float64 columns, cast for the solve alone; the block itself without a preconditioner.

    They are cast at lengths about one, since half precision knows no small number: powers of two change no digit.
    """
    if preconditioner is None:
        return block
    size = lengths(block)
    unit = torch.where(size > 0, size / torch.frexp(size).mantissa, 1.0)
    return wide(preconditioner.solve((block / unit).to(preconditioner.device, preconditioner.dtype)).detach()) * unit


def lengths(block: Float[Tensor, "d k"]) -> Float[Tensor, " k"]:
    """The Euclidean length of each column."""
    return torch.linalg.vector_norm(block, dim=0)
