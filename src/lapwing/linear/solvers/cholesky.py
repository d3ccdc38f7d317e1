"""Exact solves by a dense Cholesky factor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import NumericalError, check_count
from lapwing.ground.results import Solution
from lapwing.linalg import Dense, Structured
from lapwing.linear.problem import Problem
from lapwing.linear.solvers.cg import Solver, in_blocks


@final
@dataclass(frozen=True)
class Cholesky(Solver):
    """Exact solves by the factor ``Λ = L Lᵀ``, made once for a problem.

    The factor is in float64, whatever the dtype of the matrix.

    Args:
        max_bytes: Memory that Λ may take; the factor takes as much again in float64.

    Raises:
        TooLargeError: If it would take more.

    Cost:
        ``2 d²`` numbers and ``d³ / 3`` multiplications once, ``2 d²`` a solve.

    Example:
        >>> from lapwing.linalg import Diagonal
        >>> from lapwing.linear.matrix import Matrix
        >>> problem = Problem.of(Matrix(torch.tensor([[1.0, 0.0], [1.0, 2.0]])), Diagonal(torch.ones(2)))
        >>> Cholesky().solve(problem, torch.tensor([5.0, 7.0])).value.round(decimals=4)
        tensor([1., 1.])
    """

    max_bytes: int = 2**31

    def __post_init__(self) -> None:
        check_count("max_bytes", self.max_bytes)

    def solve(
        self, problem: Problem, b: Float[Tensor, "d *k"], *, initial: Float[Tensor, "d *k"] | None = None
    ) -> Solution:
        """See ``Solver.solve``; where to start plays no part."""

        def solve(block: Float[Tensor, "d k"], start: Float[Tensor, "d k"] | None) -> Solution:
            value = self.held(problem).solve(block)
            return Solution(value, torch.zeros(block.shape[1], dtype=torch.float64), 1, block.shape[1], "converged")

        return in_blocks(solve, problem, b, initial, b.numel())

    def held(self, problem: Problem) -> Structured:
        """Λ written out, made once for a problem; it keeps its factor.

        Raises:
            NumericalError: If it is not positive definite, to rounding.
            TooLargeError: If it would take more than ``max_bytes``.
        """
        found = problem.prepared.get(self)
        if not isinstance(found, Dense):
            precision = problem.curvature.dense(self.max_bytes).mul_(problem.scale)
            precision.diagonal().add_(problem.prior.values)
            found = problem.prepared[self] = Dense(precision)
        if not found.definite:
            got = "one that is singular to rounding"
            raise NumericalError("a positive definite precision", got, "a larger prior precision, or float64")
        return found
