"""An operator between a root and its adjoint: what preconditioning makes of it."""

from __future__ import annotations

from torch import Tensor

from lapwing.ground.errors import ShapeError
from lapwing.linalg.operator import FunctionOperator, Operator, check_square, in_float64


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
        >>> import torch
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
