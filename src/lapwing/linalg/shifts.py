"""Many shifts of one system in one Krylov space: what the solvers of shifted systems share."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import TypeAlias, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lapwing.ground.errors import NumericalError, ShapeError
from lapwing.ground.results import Solution, Stopped
from lapwing.linalg.eigenbasis import finite
from lapwing.linalg.operator import Operator, in_float64
from lapwing.linalg.structured import Structured
from lapwing.linalg.system import check_system, precondition

ROUNDING = 10 * torch.finfo(torch.float64).eps
"""Relative to the entries of its row, an entry of ``T`` within this is rounding."""

ShiftedSolver: TypeAlias = Callable[..., Solution]
"""``shifted_conjugate_gradients`` or ``shifted_minres``."""


@final
class Process:
    """Lanczos: ``A V = Z T + β_j z_{j+1} e_jᵀ``, ``Z = P V``, ``VᵀZ = I``, column by column; no basis is kept.

    Args:
        operator: ``A``, between float64 vectors.
        preconditioner: ``P``; None for the identity.
        b: Where each column starts; ``z_1 = b / length``.
    """

    def __init__(self, operator: Operator, preconditioner: Structured | None, b: Float[Tensor, "d k"]) -> None:
        self.operator, self.preconditioner = operator, preconditioner
        self.z_before = torch.zeros_like(b)
        self.z = self.v = b
        self.scale = b.new_zeros(b.shape[1])
        self.alive = torch.ones_like(self.scale, dtype=torch.bool)
        self.length = self._normalise(b.clone())
        self.beta = torch.zeros_like(self.length)

    def step(self, columns: Bool[Tensor, " k"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Multiply these columns; returns ``v_j``, ``α_j``, ``β_{j-1}`` (first 0) and ``β_j``."""
        v, before = self.v, self.beta
        p = torch.zeros_like(v)
        p[:, columns] = self.operator @ v[:, columns]
        alpha = (p * v).sum(0)
        p.addcmul_(self.z, alpha.expand_as(p), value=-1).addcmul_(self.z_before, before.expand_as(p), value=-1)
        self.z_before = self.z
        self.scale = torch.maximum(self.scale, alpha.abs() + before)
        self.beta = self._normalise(p)
        return v, alpha, before, self.beta

    def _normalise(self, z: Float[Tensor, "d k"]) -> Float[Tensor, " k"]:
        """The next pair from ``β z``, zero where the space of a column is exhausted; returns ``β``."""
        v = precondition(self.preconditioner, z)
        square = finite((z * v).sum(0))
        if bool((square < 0).any()):
            raise NumericalError(
                "a positive definite preconditioner", f"zᵀP⁻¹z = {square.min().item():.3g}", "a Structured with a base"
            )
        beta = square.sqrt()
        self.alive = self.alive & (beta > ROUNDING * self.scale)
        inverse = torch.where(self.alive, 1 / beta, 0.0)
        same = v is z
        self.z = z.mul_(inverse)
        self.v = self.z if same else v.mul_(inverse)
        return beta


class Systems(abc.ABC):
    """One system for each shift and column, solved in step with the process.

    Args:
        shifts: ``t``, ``[q, 1]``.
        weights: If given, only ``Σ_q w_q c_q`` is kept.
        length: Of each right-hand side.
        b: The right-hand sides, for their shape.
    """

    def __init__(
        self, shifts: Float[Tensor, "q 1"], weights: Tensor | None, length: Float[Tensor, " k"], b: Float[Tensor, "d k"]
    ) -> None:
        self.shifts, self.weights, self.length = shifts, weights, length
        self.residual = (length > 0).double().expand(len(shifts), -1)
        self.broken = torch.zeros_like(self.residual, dtype=torch.bool)
        self.value = torch.zeros_like(b) if weights is not None else b.new_zeros(len(shifts), *b.shape)

    def open(self, rtol: float) -> Bool[Tensor, "q k"]:
        """The systems that have not converged."""
        return self.residual.abs() > rtol

    @abc.abstractmethod
    def advance(
        self,
        left: Bool[Tensor, "q k"],
        v: Float[Tensor, "d k"],
        alpha: Float[Tensor, " k"],
        before: Float[Tensor, " k"],
        beta: Float[Tensor, " k"],
    ) -> None:
        """Take in one more column of ``T``; systems that are not ``left`` keep their value and residual.

        A system that cannot go on is ``broken``.
        """

    def move(self, q: int, step: Float[Tensor, " k"], direction: Float[Tensor, "d k"]) -> None:
        """Add to the value of one shift."""
        if self.weights is None:
            self.value[q].addcmul_(direction, step.expand_as(direction))
        else:
            self.value.addcmul_(direction, (self.weights[q] * step).expand_as(direction))


def solve_shifted(
    method: type[Systems],
    operator: Operator,
    b: Float[Tensor, "d *k"],
    shifts: Float[Tensor, " q"],
    *,
    rtol: float,
    max_iterations: int,
    preconditioner: Structured | None,
    weights: Float[Tensor, "..."] | None,
) -> Solution:
    """Run the process until every system has converged, or has nothing left to explore."""
    block = check_system(operator, b, rtol=rtol, max_iterations=max_iterations, preconditioner=preconditioner)
    if shifts.ndim != 1 or len(shifts) == 0:
        raise ShapeError("shifts [q]", f"shape {list(shifts.shape)}", "torch.tensor([0.0]) for none")
    if weights is not None and weights.shape != shifts.shape:
        raise ShapeError(f"one weight a shift, {list(shifts.shape)}", f"{list(weights.shape)}", "weights [q]")
    process = Process(in_float64(operator), preconditioner, block)
    if weights is not None:
        weights = finite(weights.detach()).to(block)
    systems = method(finite(shifts.detach()).to(block)[:, None], weights, process.length, block)
    steps, matvecs, left = 0, 0, systems.open(rtol)
    while steps < max_iterations and bool(left.any()):
        steps += 1
        matvecs += int(left.any(0).sum())
        systems.advance(left, *process.step(left.any(0)))
        left = systems.open(rtol) & process.alive & ~systems.broken
    stopped: Stopped = "converged"
    if bool(systems.open(rtol).any()):
        stopped = "iterations" if bool(left.any()) else "breakdown"
    value = systems.value.to(operator.dtype)
    return Solution(value.reshape(*value.shape[:-2], *b.shape), systems.residual.abs(), steps, matvecs, stopped)
