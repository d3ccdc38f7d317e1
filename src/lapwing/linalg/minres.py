"""Minimal residuals for many shifts in one Krylov space."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lapwing.ground.results import Solution
from lapwing.linalg.operator import Operator
from lapwing.linalg.shifts import ROUNDING, Systems, solve_shifted
from lapwing.linalg.structured import Structured


def shifted_minres(
    operator: Operator,
    b: Float[Tensor, "d *k"],
    shifts: Float[Tensor, " q"],
    *,
    rtol: float = 1e-6,
    max_iterations: int = 1000,
    preconditioner: Structured | None = None,
    weights: Float[Tensor, "..."] | None = None,
) -> Solution:
    """Solve ``(A + t_q P) c_q = b`` for every shift by minimal residuals, at the products of one system.

    Krylov spaces do not feel a shift: with ``P⁻¹A + t I`` the tridiagonal matrix ``T`` of Lanczos becomes ``T + t I``,
    and Givens rotations of each shift solve its own least-squares problem on the common vectors (Paige & Saunders
    1975; with shifts Pleiss et al. 2020, algorithm 3, whose normalisation of the preconditioned vectors is mended
    here). Columns are independent of each other.

    Args:
        operator: Symmetric ``A``, ``[d, d]``; it may be indefinite.
        b: Right-hand sides, ``[d]`` or ``[d, k]``, in the operator's dtype.
        shifts: ``t``, ``[q]``, finite.
        rtol: A system has converged when its relative residual, in the norm below, is within this.
        max_iterations: Steps allowed, each one product.
        preconditioner: ``P``, the identity unless given. Note that the shift multiplies it.
        weights: ``w``, ``[q]``. If given, only the sum ``Σ_q w_q c_q`` is kept and returned, shaped as ``b``.

    Returns:
        ``c``, ``[q, d]`` or ``[q, d, k]``, in the operator's dtype. The residual ``[q, k]`` is
        ``|b - (A + t P) c| / |b|`` in the norm ``|v|² = vᵀ P⁻¹ v``, which this method minimises, by recurrence; below
        about ``ε κ^{3/2}``, 1e-4 at a condition number ``κ`` of 1e8, rounding keeps the true one from following.
        "breakdown" where a space is exhausted before its system is solved: ``A + t P`` is singular.

    Raises:
        ShapeError: ``A``, ``b`` and the preconditioner do not fit, ``b`` has no column, or there is no shift.
        UnsupportedError: ``b`` has another dtype than ``A``.
        ConfigError: An option makes no sense.
        NumericalError: The preconditioner is not positive definite, or a number is not finite.

    Cost:
        A step: one product and one preconditioner solve with the open columns; ``8 d k`` operations for each open
        shift in float64.
        Memory: ``3 q + 6`` float64 blocks ``[d, k]``, with weights ``2 q + 7``. No gradient flows through.

    Example:
        >>> from lapwing.linalg import Diagonal
        >>> a = Diagonal(torch.tensor([1.0, 3.0], dtype=torch.float64))
        >>> shifts = torch.tensor([0.0, 1.0], dtype=torch.float64)
        >>> shifted_minres(a, torch.ones(2, dtype=torch.float64), shifts).value.round(decimals=6).tolist()
        [[1.0, 0.333333], [0.5, 0.25]]

    Source: G. Pleiss et al., Fast matrix square roots with applications to Gaussian processes and Bayesian
        optimization, NeurIPS 2020; C. Paige and M. Saunders, SIAM Journal on Numerical Analysis 12, 1975.
    """
    return solve_shifted(
        _Rotations,
        operator,
        b,
        shifts,
        rtol=rtol,
        max_iterations=max_iterations,
        preconditioner=preconditioner,
        weights=weights,
    )


@final
class _Rotations(Systems):
    """The least-squares problem of each ``T + t I``, made triangular by Givens rotations."""

    def __init__(
        self, shifts: Float[Tensor, "q 1"], weights: Tensor | None, length: Float[Tensor, " k"], b: Float[Tensor, "d k"]
    ) -> None:
        super().__init__(shifts, weights, length, b)
        self.cos = self.cos_before = torch.ones_like(self.residual)
        self.sin = self.sin_before = torch.zeros_like(self.residual)
        self.d, self.d_before = b.new_zeros(2, len(shifts), *b.shape)

    def advance(
        self,
        left: Bool[Tensor, "q k"],
        v: Float[Tensor, "d k"],
        alpha: Float[Tensor, " k"],
        before: Float[Tensor, " k"],
        beta: Float[Tensor, " k"],
    ) -> None:
        """One more rotation."""
        diagonal = alpha + self.shifts
        epsilon, zeta = self.sin_before * before, self.cos_before * before
        eta, zeta = self.cos * diagonal - self.sin * zeta, self.cos * zeta + self.sin * diagonal
        r = torch.hypot(eta, beta)
        regular = r > ROUNDING * (diagonal.abs() + before)
        inverse = torch.where(regular, 1 / r, 0.0)
        self.cos_before, self.cos = self.cos, eta * inverse
        self.sin_before, self.sin = self.sin, torch.where(regular, beta * inverse, 1.0)
        step = torch.where(left, self.cos * self.residual, 0.0)
        self.residual = torch.where(left, -self.sin * self.residual, self.residual)
        for q in left.any(1).nonzero()[:, 0].tolist():
            d = self.d_before[q].mul_(-epsilon[q] * inverse[q])
            d.addcmul_(self.d[q], (-zeta[q] * inverse[q]).expand_as(d)).addcmul_(v, inverse[q].expand_as(d))
            self.move(q, step[q] * self.length, d)
        self.d, self.d_before = self.d_before, self.d
