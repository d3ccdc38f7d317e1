"""Exact solves by a dense Cholesky factor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import check_count
from lapwing.ground.results import Estimate, Solution
from lapwing.linalg.cholesky import cholesky
from lapwing.linear.problem import Problem
from lapwing.linear.solvers.base import Solver, in_blocks


@final
@dataclass(frozen=True)
class Cholesky(Solver):
    """Exact solves by the factor ``Λ = L Lᵀ``, made once for a problem.

    The factor is in float64, whatever the dtype of the matrix.

    Args:
        max_bytes: Memory that Λ may take; the factor takes its place, or that in float64.

    Raises:
        TooLargeError: If it would take more.

    Cost:
        ``d²`` numbers and ``d³ / 3`` multiplications once, ``2 d²`` a solve.

    Example:
        >>> from lapwing.linalg import Diagonal
        >>> from lapwing.linear.model import Matrix
        >>> problem = Problem.of(Matrix(torch.tensor([[1.0, 0.0], [1.0, 2.0]])), Diagonal(torch.ones(2)))
        >>> Cholesky().solve(problem, torch.tensor([5.0, 7.0])).value.round(decimals=4)
        tensor([1., 1.])
    """

    exact: ClassVar[bool] = True

    max_bytes: int = 2**31

    def __post_init__(self) -> None:
        check_count("max_bytes", self.max_bytes)

    def solve(
        self, problem: Problem, b: Float[Tensor, "d *k"], *, initial: Float[Tensor, "d *k"] | None = None
    ) -> Solution:
        """See ``Solver.solve``; where to start plays no part."""

        def solve(block: Float[Tensor, "d k"], start: Float[Tensor, "d k"] | None) -> Solution:
            lower = self.factor(problem)
            half = torch.linalg.solve_triangular(lower, block.to(lower), upper=False)
            value = torch.linalg.solve_triangular(lower.mT, half, upper=True).to(block)
            return Solution(value, torch.zeros(block.shape[1], dtype=torch.float64), 1, block.shape[1], "converged")

        return in_blocks(solve, problem, b, initial, b.numel())

    def factor(self, problem: Problem) -> Float[Tensor, "d d"]:
        """L, made once for a problem.

        Raises:
            NumericalError: If Λ is not positive definite, to rounding.
            TooLargeError: If it would take more than ``max_bytes``.
        """
        if self not in problem.cache:
            precision = problem.curvature.dense(self.max_bytes).mul_(problem.scale)
            precision.diagonal().add_(problem.prior.values)
            problem.cache[self] = cholesky(precision)
        return problem.cache[self]

    def quadratic_forms(self, problem: Problem, v: Float[Tensor, "d k"]) -> Float[Tensor, " k"]:
        """See ``Solver.quadratic_forms``; ``|L⁻¹ v|²``."""
        return torch.linalg.solve_triangular(self.factor(problem), v, upper=False).square().sum(0)

    def log_determinant(self, problem: Problem, *, generator: torch.Generator | None = None) -> Estimate:
        """See ``Solver.log_determinant``; ``2 Σ log diag L``, without an error."""
        return Estimate(2.0 * float(self.factor(problem).diagonal().log().sum()), 0.0, 1)

    @property
    def max_dense_bytes(self) -> int:
        """See ``Solver.max_dense_bytes``."""
        return self.max_bytes
