"""Operators as a recurrence sees them: square, in float64, between a root and its adjoint."""

from __future__ import annotations

import torch
from torch import Tensor

from lapwing.errors import ShapeError
from lapwing.linalg.operator import FunctionOperator, Operator


def congruence(operator: Operator, w: Operator) -> FunctionOperator:
    """The symmetric operator ``Wᵀ A W``, in float64.

    With ``W Wᵀ = P⁻¹``, as ``P.inverse_root()`` has it, its eigenvalues are those of ``P⁻¹ A``:
    what preconditioning makes of the spectrum.

    Args:
        operator: ``A``, ``[d, d]``.
        w: ``W``, ``[d, r]``.

    Returns:
        ``Wᵀ A W``, ``[r, r]``. A product costs one with each of the three.

    Raises:
        ShapeError: ``A`` is not square, or ``W`` does not fit.

    Example:
        >>> from lapwing.linalg import Diagonal
        >>> a = Diagonal(torch.tensor([1.0, 4.0]))
        >>> (congruence(a, a.inverse_root()) @ torch.ones(2).double()).tolist()
        [1.0, 1.0]
    """
    if w.shape[0] != check_square(operator):
        raise ShapeError(f"a root with {operator.shape[0]} rows for {operator!r}", f"{w!r}", "P.inverse_root()")
    a, inner, outer = in_float64(operator), in_float64(w), in_float64(w.T)

    def product(block: Tensor) -> Tensor:
        return outer @ (a @ (inner @ block))

    return FunctionOperator(product, product, (w.shape[1], w.shape[1]), inner.like)


def in_float64(operator: Operator) -> FunctionOperator:
    """The operator between float64 vectors, though its products may run in another dtype; nothing is differentiated.

    Recurrences lose their orthogonality in float32 long before products lose their use, so lapwing iterates in
    float64 and leaves the product, which costs the most, in the operator's own dtype.

    Args:
        operator: ``A``, in any dtype.

    Returns:
        ``A`` with float64 operands and results.
    """
    return FunctionOperator(
        lambda block: (operator @ block.to(operator.dtype)).detach().double(),
        lambda block: (operator.T @ block.to(operator.dtype)).detach().double(),
        operator.shape,
        torch.empty(0, dtype=torch.float64, device=operator.device),
    )


def check_square(operator: Operator) -> int:
    """Return the size ``d`` of an operator ``[d, d]``; raise where it is not square."""
    rows, columns = operator.shape
    if rows != columns:
        raise ShapeError("a symmetric operator [d, d]", f"{operator!r}", "A.T @ A, or the operator itself")
    return rows
