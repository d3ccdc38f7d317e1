"""Conjugate gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import check_count, check_fraction, check_kind, check_positive
from lapwing.ground.results import Solution
from lapwing.linalg import Structured
from lapwing.linalg.cg import conjugate_gradients
from lapwing.linear.preconditioners.base import Preconditioner, approximation
from lapwing.linear.problem import Problem
from lapwing.linear.solvers.base import Solver, in_blocks

VECTORS = 10
"""Blocks of columns conjugate gradients hold at once, in float64."""


@final
@dataclass(frozen=True)
class CG(Solver):
    """Preconditioned block conjugate gradients: all right-hand sides share one Krylov space.

    Args:
        rtol: Relative residual ``|b - Λ x| / |b|`` at which a column is done; ``None`` for 1e-6, in float32 for 1e-4,
            about what its products resolve.
        max_iterations: Most products with a block.
        preconditioner: A recipe for P ≈ Λ: ``PivotedCholesky(100)``, ``Subsample(50)``, ``LowRank(100)``, ``KFAC()``,
            ``Diagonal()``, ``RankOne()``; ``None`` for the prior alone, P = A: free, and nothing where all
            its precisions are alike.
        max_bytes: Memory the blocks may take; more columns than fit are solved one block after another.
        seconds: Time after which a block takes no further step, and says how far it is; ``None`` for any.
        progress: Whether to show a progress bar with the residual; ``None`` for after two seconds, in a terminal or
            notebook.

    Raises:
        ConfigError: If a number is not positive.

    Cost:
        An iteration: one product with Λ and one solve with P for each block, and ``d k²`` for the block's own algebra.

    Example:
        >>> CG(rtol=1e-4)
        CG(rtol=0.0001, max_iterations=1000, preconditioner=None, max_bytes=1073741824, seconds=None, progress=None)
    """

    cure = "a preconditioner of more rank, up to CG(preconditioner=PivotedCholesky(1000)), or a larger max_iterations"

    rtol: float | None = None
    max_iterations: int = 1000
    preconditioner: Preconditioner | None = None
    max_bytes: int = 2**30
    seconds: float | None = None
    progress: bool | None = None

    def __post_init__(self) -> None:
        if self.seconds is not None:
            check_positive("seconds", self.seconds, "60.0")
        if self.rtol is not None:
            check_fraction("rtol", self.rtol, "CG(rtol=1e-6)")
        check_count("max_iterations", self.max_iterations)
        check_count("max_bytes", self.max_bytes)
        if self.preconditioner is not None:
            check_kind("preconditioner=", self.preconditioner, (Preconditioner,), "PivotedCholesky(100)")

    def solve(
        self, problem: Problem, b: Float[Tensor, "d *k"], *, initial: Float[Tensor, "d *k"] | None = None
    ) -> Solution:
        """See ``Solver.solve``."""
        preconditioner = self.preconditioner_of(problem) or problem.prior

        def solve(block: Float[Tensor, "d k"], start: Float[Tensor, "d k"] | None) -> Solution:
            return conjugate_gradients(
                problem.precision,
                block,
                rtol=self.tolerance(problem.prior.dtype),
                max_iterations=self.max_iterations,
                preconditioner=preconditioner,
                initial=start,
                seconds=self.seconds,
                progress=self.progress,
            )

        return in_blocks(solve, problem, b, initial, self.width(problem))

    def newton_step(self, problem: Problem, b: Float[Tensor, " d"], rtol: float, passes: float = math.inf) -> Solution:
        """See ``Solver.newton_step``; as loosely as asked."""
        return conjugate_gradients(
            problem.precision,
            b,
            rtol=rtol,
            max_iterations=self.max_iterations,
            preconditioner=self.preconditioner_of(problem) or problem.prior,
            unit=problem.prior.values.rsqrt(),
        )

    def preconditioner_of(self, problem: Problem) -> Structured | None:
        """See ``Solver.preconditioner_of``."""
        return None if self.preconditioner is None else approximation(problem, self.preconditioner)

    def loosely(self, rtol: float, dtype: torch.dtype) -> CG:
        """See ``Solver.loosely``."""
        if self.rtol is not None:
            return self
        return replace(self, rtol=max(self.tolerance(dtype), rtol))

    def within(self, seconds: float) -> CG:
        """See ``Solver.within``."""
        return replace(self, seconds=seconds)

    def with_progress(self, progress: bool) -> CG:
        """See ``Solver.with_progress``."""
        return replace(self, progress=progress)

    def tolerance(self, dtype: torch.dtype) -> float:
        """The relative residual asked of products in a dtype."""
        if self.rtol is not None:
            return self.rtol
        return 1e-6 if dtype == torch.float64 else 1e-4

    def width(self, problem: Problem) -> int:
        """Columns solved together."""
        return max(1, self.max_bytes // (VECTORS * 8 * problem.size))
