"""Many shifts of one system in one Krylov space, by conjugate gradients or by minimal residuals."""

from __future__ import annotations

import abc
from typing import Literal, TypeAlias, final, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lapwing.ground.errors import NumericalError, ShapeError, check_option
from lapwing.ground.precision import wide
from lapwing.ground.results import Solution, Stopped
from lapwing.linalg.checks import finite
from lapwing.linalg.lanczos import LanczosStep, Recurrence
from lapwing.linalg.operators.base import Operator, Structured, in_float64
from lapwing.linalg.systems import check_system

ROUNDING = 10 * torch.finfo(torch.float64).eps
"""Relative to the entries of its row, an entry of ``T`` within this is rounding."""

NOISE = torch.finfo(torch.float32).eps ** 0.5
"""Relative to the entries of its row, a negative pivot beyond this is not rounding, in any dtype."""

Method: TypeAlias = Literal["cg", "minres"]
"""Conjugate gradients, or minimal residuals."""


def shifted_solve(
    operator: Operator,
    b: Float[Tensor, "d *k"],
    shifts: Float[Tensor, " q"],
    *,
    method: Method = "cg",
    rtol: float = 1e-6,
    max_iterations: int = 1000,
    preconditioner: Structured | None = None,
    weights: Float[Tensor, "..."] | None = None,
) -> Solution:
    """Solve ``(A + t_q P) c_q = b`` for every shift, at the products of one system.

    Krylov spaces do not feel a shift: with ``P⁻¹A + t I`` the tridiagonal matrix ``T`` of Lanczos becomes ``T + t I``.
    Columns are independent of each other. With ``"cg"`` each shift carries its own factorisation ``T + t I = L D Lᵀ``:

    l = β_{j-1} / D_{j-1}, D_j = α_j + t − β_{j-1} l, d_j = v_j − l d_{j-1}, c ← c + ρ / D_j d_j, ρ ← −β_j ρ / D_j

    (Golub & Van Loan 2013, section 11.3), with the residual ``ρ z_{j+1}``. With ``"minres"`` Givens rotations of each
    shift solve its own least-squares problem on the common vectors (Paige & Saunders 1975; with shifts Pleiss et al.
    2020, algorithm 3, whose normalisation of the preconditioned vectors is mended here): ``A`` may be indefinite. It
    takes within a few as many steps and half as much memory again, and rounding leaves a residual of about
    ``ε κ^{3/2}``, 1e-4 at a condition number ``κ`` of 1e8, where ``"cg"`` leaves ``ε κ``.

    Args:
        operator: Symmetric ``A``, ``[d, d]``.
        b: Right-hand sides, ``[d]`` or ``[d, k]``, in the operator's dtype.
        shifts: ``t``, ``[q]``, finite.
        method: ``"cg"`` where every ``A + t P`` is positive definite, or ``"minres"``.
        rtol: A system has converged when its relative residual, in the norm below, is within this.
        max_iterations: Steps allowed, each one product.
        preconditioner: ``P``, the identity unless given. Note that the shift multiplies it.
        weights: ``w``, ``[q]``. If given, only the sum ``Σ_q w_q c_q`` is kept and returned, shaped as ``b``.

    Returns:
        ``c``, ``[q, d]`` or ``[q, d, k]``, in the operator's dtype. The residual ``[q, k]`` is
        ``|b - (A + t P) c| / |b|`` in the norm ``|v|² = vᵀ P⁻¹ v``, which ``"minres"`` minimises, by recurrence.
        "breakdown" where an ``A + t P`` is singular to rounding.

    Raises:
        ShapeError: ``A``, ``b`` and the preconditioner do not fit, ``b`` has no column, or there is no shift.
        UnsupportedError: ``b`` has another dtype than ``A``.
        ConfigError: An option makes no sense.
        NumericalError: An ``A + t P`` for ``"cg"``, or ``P``, is not positive definite, or a number is not finite.

    Cost:
        A step: one product and one preconditioner solve with the open columns, ``4 d k`` operations for each open
        shift in float64, twice that with ``"minres"``. Memory: ``2 q + 6`` float64 blocks ``[d, k]``, with weights
        ``q + 7``; with ``"minres"`` ``3 q + 6`` and ``2 q + 7``. No gradient flows through.

    Example:
        >>> from lapwing.linalg import Diagonal
        >>> a = Diagonal(torch.tensor([1.0, 3.0], dtype=torch.float64))
        >>> shifts = torch.tensor([0.0, 1.0], dtype=torch.float64)
        >>> shifted_solve(a, torch.ones(2).double(), shifts).value.round(decimals=6).tolist()
        [[1.0, 0.333333], [0.5, 0.25]]

    Source: G. Golub and C. Van Loan, Matrix Computations, 4th edition, 2013; A. Frommer and P. Maass, SIAM Journal on
        Scientific Computing 20, 1999; G. Pleiss et al., NeurIPS 2020; C. Paige and M. Saunders, SIAM Journal on
        Numerical Analysis 12, 1975.
    """
    check_option("method", method, get_args(Method))
    block = check_system(operator, b, rtol, max_iterations, preconditioner)
    if shifts.ndim != 1 or len(shifts) == 0:
        raise ShapeError("shifts [q]", f"shape {list(shifts.shape)}", "torch.tensor([0.0]) for none")
    if weights is not None and weights.shape != shifts.shape:
        raise ShapeError(f"one weight a shift, {list(shifts.shape)}", f"{list(weights.shape)}", "weights [q]")
    process = Recurrence(in_float64(operator), block, ROUNDING, preconditioner)
    kind = _Factors if method == "cg" else _Rotations
    systems = kind(finite(shifts.detach()).to(block), None if weights is None else finite(weights.detach()), process)
    steps = 0
    matvecs = 0
    left = systems.open(rtol)
    while steps < max_iterations and bool(left.any()):
        steps += 1
        matvecs += int(left.any(0).sum())
        systems.advance(left, process.step(left.any(0)))
        left = systems.open(rtol) & process.alive & ~systems.broken
    stopped: Stopped = "converged"
    if bool(systems.open(rtol).any()):
        stopped = "iterations" if bool(left.any()) else "breakdown"
    value = systems.value.to(b)
    return Solution(value.reshape(*value.shape[:-2], *b.shape), systems.residual.abs(), steps, matvecs, stopped)


class _Systems(abc.ABC):
    """One system for each shift and column, solved in step with the recurrence.

    Args:
        shifts: ``t``, ``[q]``.
        weights: If given, only ``Σ_q w_q c_q`` is kept.
        process: The recurrence, which has taken no step.
    """

    def __init__(self, shifts: Float[Tensor, " q"], weights: Tensor | None, process: Recurrence) -> None:
        block = process.v
        self.shifts = shifts[:, None]
        self.length = process.length
        self.weights = None if weights is None else weights.to(block)
        self.residual = wide(self.length > 0).expand(len(shifts), -1)
        self.broken = torch.zeros_like(self.residual, dtype=torch.bool)
        self.d = block.new_zeros(len(shifts), *block.shape)
        self.value = torch.zeros_like(block if weights is not None else self.d)

    def open(self, rtol: float) -> Bool[Tensor, "q k"]:
        """The systems that have not converged."""
        return self.residual.abs() > rtol

    @abc.abstractmethod
    def advance(self, left: Bool[Tensor, "q k"], row: LanczosStep) -> None:
        """Take in one more row of ``T``; systems that are not ``left`` keep their value and residual.

        A system that cannot go on is ``broken``.
        """

    def move(self, q: int, step: Float[Tensor, " k"], direction: Float[Tensor, "d k"]) -> None:
        """Add to the value of one shift."""
        if self.weights is None:
            self.value[q].addcmul_(direction, step.expand_as(direction))
        else:
            self.value.addcmul_(direction, (self.weights[q] * step).expand_as(direction))


@final
class _Factors(_Systems):
    """``L D Lᵀ`` of each ``T + t I``."""

    def __init__(self, shifts: Float[Tensor, " q"], weights: Tensor | None, process: Recurrence) -> None:
        super().__init__(shifts, weights, process)
        self.pivot = torch.ones_like(self.residual)

    def advance(self, left: Bool[Tensor, "q k"], row: LanczosStep) -> None:
        """One more row of ``L`` and ``D``."""
        lower = row.before / self.pivot
        pivot = row.alpha + self.shifts - row.before * lower
        if bool((left & (pivot < -NOISE * (row.alpha.abs() + self.shifts.abs() + row.before))).any()):
            raise NumericalError(
                "a positive definite operator A + t P for every shift t",
                f"a pivot of {pivot[left].min().item():.3g} in its factorisation",
                "a larger prior precision, larger shifts, or method='minres'",
            )
        self.broken = self.broken | (left & (pivot <= 0))
        left = left & ~self.broken
        self.pivot = torch.where(left, pivot, 1.0)
        step = torch.where(left, self.residual / self.pivot, 0.0)
        self.residual = torch.where(left, -row.beta * step, self.residual)
        for q in left.any(1).nonzero()[:, 0].tolist():
            self.d[q].mul_(-lower[q]).add_(row.v)
            self.move(q, step[q] * self.length, self.d[q])


@final
class _Rotations(_Systems):
    """The least-squares problem of each ``T + t I``, made triangular by Givens rotations."""

    def __init__(self, shifts: Float[Tensor, " q"], weights: Tensor | None, process: Recurrence) -> None:
        super().__init__(shifts, weights, process)
        self.cos = self.cos_before = torch.ones_like(self.residual)
        self.sin = self.sin_before = torch.zeros_like(self.residual)
        self.d_before = torch.zeros_like(self.d)

    def advance(self, left: Bool[Tensor, "q k"], row: LanczosStep) -> None:
        """One more rotation."""
        diagonal = row.alpha + self.shifts
        epsilon = self.sin_before * row.before
        zeta = self.cos_before * row.before
        eta = self.cos * diagonal - self.sin * zeta
        zeta = self.cos * zeta + self.sin * diagonal
        r = torch.hypot(eta, row.beta)
        regular = r > ROUNDING * (diagonal.abs() + row.before)
        inverse = torch.where(regular, 1 / r, 0.0)
        self.cos_before = self.cos
        self.cos = eta * inverse
        self.sin_before = self.sin
        self.sin = torch.where(regular, row.beta * inverse, 1.0)
        step = torch.where(left, self.cos * self.residual, 0.0)
        self.residual = torch.where(left, -self.sin * self.residual, self.residual)
        for q in left.any(1).nonzero()[:, 0].tolist():
            d = self.d_before[q].mul_(-epsilon[q] * inverse[q])
            d.addcmul_(self.d[q], (-zeta[q] * inverse[q]).expand_as(d)).addcmul_(row.v, inverse[q].expand_as(d))
            self.move(q, step[q] * self.length, d)
        self.d, self.d_before = self.d_before, self.d  # the new directions are where the oldest were
