"""What every solver answers; conjugate gradients."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import NumericalError, ShapeError, check_count, check_fraction, check_kind, check_positive
from lapwing.ground.results import Solution, joined
from lapwing.linalg import Structured
from lapwing.linalg.cg import conjugate_gradients
from lapwing.linalg.operators.base import check_operand
from lapwing.linear.problem import Preconditioner, Problem, approximation

VECTORS = 10
"""Blocks of columns conjugate gradients hold at once, in float64."""


@dataclass(frozen=True)
class Solver(abc.ABC):
    """A way to solve ``Λ x = b`` for the precision Λ of a problem."""

    cure: ClassVar[str] = "more iterations"
    """What to try where a solve stops short of its tolerance."""

    @abc.abstractmethod
    def solve(
        self, problem: Problem, b: Float[Tensor, "d *k"], *, initial: Float[Tensor, "d *k"] | None = None
    ) -> Solution:
        """The solution for one right-hand side or a block of them.

        Args:
            problem: The problem.
            b: Right-hand sides.
            initial: Where to start; ``None`` for 0.
        """

    def resumed(self, problem: Problem, b: Float[Tensor, "d k"], start: Float[Tensor, "d k"]) -> Solution:
        """The solution, from that of a problem whose prior or noise was a little different.

        Args:
            problem: The problem.
            b: Right-hand sides.
            start: That solution.
        """
        return self.solve(problem, b, initial=start)

    def drawn(
        self,
        problem: Problem,
        values: Float[Tensor, "d k"],
        noise: Float[Tensor, "d k"],
        *,
        initial: Float[Tensor, "d k"] | None = None,
    ) -> Solution:
        """The solution for a draw ``values + noise`` whose noise is from N(0, A): in function view, f(X) + ε.

        Args:
            problem: The problem.
            values: The one part.
            noise: The other.
            initial: Where to start; ``None`` for 0.
        """
        return self.solve(problem, values + noise, initial=initial)

    def prepared(self, problem: Problem) -> Structured | None:
        """The preconditioner this solver has for a problem, made on first use; ``None`` for none."""
        return None


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
        prepared = self.prepared(problem)

        def solve(block: Float[Tensor, "d k"], start: Float[Tensor, "d k"] | None) -> Solution:
            return conjugate_gradients(
                problem.precision,
                block,
                rtol=self.tolerance(problem.prior.dtype),
                max_iterations=self.max_iterations,
                preconditioner=problem.prior if prepared is None else prepared,
                initial=start,
                seconds=self.seconds,
                progress=self.progress,
            )

        return in_blocks(solve, problem, b, initial, self.width(problem))

    def prepared(self, problem: Problem) -> Structured | None:
        """The preconditioner of a problem, made on first use."""
        return None if self.preconditioner is None else approximation(problem, self.preconditioner)

    def tolerance(self, dtype: torch.dtype) -> float:
        """The relative residual asked of products in a dtype."""
        if self.rtol is not None:
            return self.rtol
        return 1e-6 if dtype == torch.float64 else 1e-4

    def width(self, problem: Problem) -> int:
        """Columns solved together."""
        return max(1, self.max_bytes // (VECTORS * 8 * problem.size))


def in_blocks(
    solve: Callable[[Tensor, Tensor | None], Solution],
    problem: Problem,
    b: Float[Tensor, "d *k"],
    initial: Float[Tensor, "d *k"] | None,
    width: int,
) -> Solution:
    """The solutions for all right-hand sides, so many columns after the other.

    Raises:
        NumericalError: If ``b`` or ``initial`` is not finite.
        ShapeError: If ``b`` does not fit or has no column, or ``initial`` has another shape.
    """
    for given in (b,) if initial is None else (b, initial):
        check_operand(problem.precision, given, problem.size)
        if not given.numel() or given.shape != b.shape:
            expected = "at least one right-hand side, and starts shaped as these"
            raise ShapeError(expected, f"{list(b.shape)}, {list(given.shape)}", "a block [d, k] with k > 0")
        if not bool(given.isfinite().all()):
            raise NumericalError("finite right-hand sides and starts", "NaN or infinity", "checking data and weights")
    blocks = b.detach().view(len(b), -1).split(width, dim=1)
    starts = [None] * len(blocks) if initial is None else initial.detach().view(len(b), -1).split(width, dim=1)
    whole = joined([solve(block, start) for block, start in zip(blocks, starts, strict=True)])
    return replace(whole, value=whole.value.reshape(b.shape))
