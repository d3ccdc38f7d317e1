"""Functions of a symmetric operator, applied to vectors, from its products."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import NumericalError, check_positive
from lapwing.ground.results import Solution, joined_solutions
from lapwing.linalg.lanczos import Function, Krylov, lanczos
from lapwing.linalg.operators.base import Operator, check_operand, check_square

MEMORY = 2**31
"""Bytes that the bases of the columns a function is applied to may take (2 GiB)."""


def apply_function(
    operator: Operator,
    b: Float[Tensor, "d *k"],
    function: Function,
    *,
    steps: int = 100,
    rtol: float = 1e-6,
    max_bytes: int = MEMORY,
) -> Solution:
    """``f(A) b`` from the Krylov space of each column.

        f(A) b ≈ |b| Q f(T) e₁                                             (Higham 2008, section 13.2)

    The error is at most ``2 |b|`` times that of the best polynomial of degree below ``j`` for ``f`` between the ends of
    the spectrum.

    Args:
        operator: Symmetric ``A``, ``[d, d]``.
        b: ``[d]`` or ``[d, k]``, in the operator's dtype.
        function: ``f``, elementwise on float64 tensors; called at Ritz values, which lie within the spectrum.
        steps: Steps at most.
        rtol: Stop when the last third of the steps changed every column by no more than this, relative to it.
        max_bytes: What the bases of the columns may take.

    Returns:
        ``f(A) b``, shaped as ``b``; ``residual`` is that relative change, which bounds the error wherever it
        shrinks at least as fast as one over the square of the steps.

    Raises:
        ShapeError: ``A`` is not square, or ``b`` does not fit.
        ConfigError: ``steps`` is less than 1 or ``rtol`` not positive.
        NumericalError: A product, or ``f`` at a Ritz value, is not finite.

    Cost: one product with ``k`` columns a step; ``8 d steps`` bytes a column, of as many columns at a time as fit
    ``max_bytes``: where not all do, each group of them makes its own products.

    Example:
        >>> from lapwing.linalg import Diagonal
        >>> squares = Diagonal(torch.tensor([1.0, 4.0, 9.0]))
        >>> apply_function(squares, torch.ones(3), torch.sqrt).value
        tensor([1., 2., 3.])
    """
    check_positive("rtol", rtol)
    check_operand(operator, b, check_square(operator))
    columns = b if b.ndim == 2 else b[:, None]
    together = max(1, max_bytes // (8 * len(b) * min(steps, len(b))))
    parts = [_applied(operator, part, function, steps, rtol) for part in columns.split(together, dim=1)]
    solution = joined_solutions(parts)
    return replace(solution, value=solution.value.reshape(b.shape))


def _applied(operator: Operator, b: Float[Tensor, "d k"], function: Function, steps: int, rtol: float) -> Solution:
    def settled(krylov: Krylov) -> bool:
        return bool((_change(krylov, function) <= rtol).all())

    krylov = lanczos(operator, b, steps, until=settled)
    change = _change(krylov, function)
    assert krylov.basis is not None
    coefficients = krylov.length[:, None] * krylov.coefficients(function)
    return Solution(
        (coefficients[:, None] @ krylov.basis)[:, 0].mT.to(operator.device, operator.dtype),
        change,
        krylov.steps,
        krylov.steps * len(krylov.length),
        "converged" if bool((change <= rtol).all()) else "iterations",
    )


def _change(krylov: Krylov, function: Function) -> Float[Tensor, " k"]:
    """How much ``f(T) e₁`` changed over the last third of the steps, relative to its length."""
    now = krylov.coefficients(function)
    before = krylov.earlier.coefficients(function) if krylov.steps > 1 else now[:, :0]
    if not bool(now.isfinite().all()):
        smallest = krylov.ritz[0].min().item()
        largest = krylov.ritz[0].max().item()
        raise NumericalError(
            "a function that is finite on the spectrum",
            f"NaN or infinity at Ritz values from {smallest:.3g} to {largest:.3g}",
            "a positive definite operator for logarithms and inverse roots",
        )
    size = torch.linalg.vector_norm(now, dim=1)
    before = torch.nn.functional.pad(before, (0, now.shape[1] - before.shape[1]))
    change = torch.linalg.vector_norm(now - before, dim=1)
    return torch.where(krylov.exhausted | (size == 0), 0.0, change / torch.where(size == 0, 1.0, size))
