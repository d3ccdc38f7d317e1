"""Conjugate gradients for many shifts in one Krylov space."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lapwing.ground.errors import NumericalError
from lapwing.ground.results import Solution
from lapwing.linalg.eigenbasis import rounding_of
from lapwing.linalg.operator import Operator
from lapwing.linalg.shifts import Systems, solve_shifted
from lapwing.linalg.structured import Structured

NOISE = rounding_of(torch.float32)
"""Relative to the entries of its row, a negative pivot beyond this is not rounding, in any dtype."""


def shifted_conjugate_gradients(
    operator: Operator,
    b: Float[Tensor, "d *k"],
    shifts: Float[Tensor, " q"],
    *,
    rtol: float = 1e-6,
    max_iterations: int = 1000,
    preconditioner: Structured | None = None,
    weights: Float[Tensor, "..."] | None = None,
) -> Solution:
    """Solve ``(A + t_q P) c_q = b``, all positive definite, at the products of one system.

    Krylov spaces do not feel a shift: with ``P⁻¹A + t I`` the tridiagonal matrix ``T`` of Lanczos becomes ``T + t I``,
    and each shift carries its own factorisation ``T + t I = L D Lᵀ``:

    l = β_{j-1} / D_{j-1}, D_j = α_j + t − β_{j-1} l, d_j = v_j − l d_{j-1}, c ← c + ρ / D_j d_j, ρ ← −β_j ρ / D_j

    (Golub & Van Loan 2013, section 11.3), with the residual ``ρ z_{j+1}``. Next to ``shifted_minres`` it takes as
    many steps within a few, two thirds of the memory, and rounding leaves a residual of ``ε κ`` in place of about
    ``ε κ^{3/2}``. Columns are independent of each other.

    Args:
        operator: Symmetric ``A``, ``[d, d]``.
        b: Right-hand sides, ``[d]`` or ``[d, k]``, in the operator's dtype.
        shifts: ``t``, ``[q]``, finite.
        rtol: A system has converged when its relative residual, in the norm below, is within this.
        max_iterations: Steps allowed, each one product.
        preconditioner: ``P``, the identity unless given. Note that the shift multiplies it.
        weights: ``w``, ``[q]``. If given, only the sum ``Σ_q w_q c_q`` is kept and returned, shaped as ``b``.

    Returns:
        ``c``, ``[q, d]`` or ``[q, d, k]``, in the operator's dtype. The residual ``[q, k]`` is
        ``|b - (A + t P) c| / |b|`` in the norm ``|v|² = vᵀ P⁻¹ v``, by recurrence. "breakdown" where an ``A + t P`` is
        singular to rounding.

    Raises:
        ShapeError: ``A``, ``b`` and the preconditioner do not fit, ``b`` has no column, or there is no shift.
        UnsupportedError: ``b`` has another dtype than ``A``.
        ConfigError: An option makes no sense.
        NumericalError: An ``A + t P``, or ``P``, is not positive definite, or a number is not finite.

    Cost:
        A step: one product and one preconditioner solve with the open columns, ``4 d k`` operations for each open
        shift in float64. Memory: ``2 q + 6`` float64 blocks ``[d, k]``, with weights ``q + 7``. No gradient flows
        through.

    Example:
        >>> from lapwing.linalg import Diagonal
        >>> a = Diagonal(torch.tensor([1.0, 3.0], dtype=torch.float64))
        >>> shifts = torch.tensor([0.0, 1.0], dtype=torch.float64)
        >>> shifted_conjugate_gradients(a, torch.ones(2).double(), shifts).value.round(decimals=6).tolist()
        [[1.0, 0.333333], [0.5, 0.25]]

    Source: G. Golub and C. Van Loan, Matrix Computations, 4th edition, 2013; A. Frommer and P. Maass, Fast CG-based
        methods for Tikhonov-Phillips regularization, SIAM Journal on Scientific Computing 20, 1999.
    """
    return solve_shifted(
        _Factors,
        operator,
        b,
        shifts,
        rtol=rtol,
        max_iterations=max_iterations,
        preconditioner=preconditioner,
        weights=weights,
    )


@final
class _Factors(Systems):
    """``L D Lᵀ`` of each ``T + t I``."""

    def __init__(
        self, shifts: Float[Tensor, "q 1"], weights: Tensor | None, length: Float[Tensor, " k"], b: Float[Tensor, "d k"]
    ) -> None:
        super().__init__(shifts, weights, length, b)
        self.pivot = torch.ones_like(self.residual)
        self.d = b.new_zeros(len(shifts), *b.shape)

    def advance(
        self,
        left: Bool[Tensor, "q k"],
        v: Float[Tensor, "d k"],
        alpha: Float[Tensor, " k"],
        before: Float[Tensor, " k"],
        beta: Float[Tensor, " k"],
    ) -> None:
        """One more row of ``L`` and ``D``."""
        lower = before / self.pivot
        pivot = alpha + self.shifts - before * lower
        if bool((left & (pivot < -NOISE * (alpha.abs() + self.shifts.abs() + before))).any()):
            raise NumericalError(
                "a positive definite operator A + t P for every shift t",
                f"a pivot of {pivot[left].min().item():.3g} in its factorisation",
                "a larger prior precision, larger shifts, or shifted_minres",
            )
        self.broken = self.broken | (left & (pivot <= 0))
        left = left & ~self.broken
        self.pivot = torch.where(left, pivot, 1.0)
        step = torch.where(left, self.residual / self.pivot, 0.0)
        self.residual = torch.where(left, -beta * step, self.residual)
        for q in left.any(1).nonzero()[:, 0].tolist():
            self.d[q].mul_(-lower[q]).add_(v)
            self.move(q, step[q] * self.length, self.d[q])
