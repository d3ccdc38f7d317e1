"""What every solver answers."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import NumericalError, ShapeError
from lapwing.ground.precision import wide
from lapwing.ground.results import Estimate, Solution, joined_solutions
from lapwing.linalg import Structured
from lapwing.linalg.log_determinant import log_determinant
from lapwing.linalg.operators.base import check_operand
from lapwing.linear.mode.loss import Loss, LossAt, Mode
from lapwing.linear.mode.newton import newton
from lapwing.linear.problem import Problem


@dataclass(frozen=True)
class Solver(abc.ABC):
    """A way to solve ``Λ x = b`` for the precision Λ of a problem."""

    cure: ClassVar[str] = "more iterations"
    """What to try where a solve stops short of its tolerance."""

    exact: ClassVar[bool] = False
    """Whether its solves are exact to rounding."""

    by_mini_batches: ClassVar[bool] = False
    """Whether it finds modes by mini-batches: to its own tolerance, and not rounding is why it stagnates."""

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

    def preconditioner_of(self, problem: Problem) -> Structured | None:
        """The preconditioner this solver has for a problem, made on first use; ``None`` for none."""
        return None

    # the same solver, otherwise

    def loosely(self, rtol: float, dtype: torch.dtype) -> Solver:
        """The solver, only as exact as asked where it was given no tolerance of its own.

        Args:
            rtol: Relative residual that is enough.
            dtype: Of the products, which resolve no more than they do.
        """
        return self

    def within(self, seconds: float) -> Solver:
        """The solver, with so much time where it can end early and say how far it is; else itself.

        Args:
            seconds: Time for each block of right-hand sides.
        """
        return self

    def with_progress(self, progress: bool) -> Solver:
        """The solver, that shows a progress bar or none, where it has any.

        Args:
            progress: Whether it does.
        """
        return self

    # what solves are for

    def quadratic_forms(self, problem: Problem, v: Float[Tensor, "d k"]) -> Float[Tensor, " k"]:
        """``vᵀ Λ⁻¹ v`` of each column."""
        return (v * self.solve(problem, v).value).sum(0)

    def log_determinant(self, problem: Problem, *, generator: torch.Generator | None = None) -> Estimate:
        """``log det Λ``, nats: by stochastic Lanczos quadrature with the solver's preconditioner, unless it is exact.

        Args:
            problem: The problem.
            generator: Source of the probes.
        """
        return log_determinant(problem.precision, preconditioner=self.preconditioner_of(problem), generator=generator)

    @property
    def max_dense_bytes(self) -> int | None:
        """Bytes that Λ may take where it is written down; ``None`` for a solver that never does."""
        return None

    # modes

    def mode_tolerance(self, dtype: torch.dtype) -> float:
        """Relative gradient at which a mode is found, where no other is asked for."""
        return 1e-6 if dtype == torch.float64 else 1e-4

    def newton_step(self, problem: Problem, b: Float[Tensor, " d"], rtol: float, passes: float = math.inf) -> Solution:
        """``Λ⁻¹ b``, where what is left will be solved for again: see ``newton``.

        Args:
            problem: The problem.
            b: Minus the gradient.
            rtol: Relative residual that is enough, in the units of the prior.
            passes: Most passes over the data, for solvers that count them.
        """
        return self.solve(problem, b)

    def minimise(self, loss: Loss, start: LossAt, *, rtol: float, steps: int, progress: bool | None = None) -> Mode:
        """The minimum of a loss, here by Newton's method.

        Args:
            loss: The loss.
            start: Where to start.
            rtol: Relative gradient at which the minimum is found.
            steps: Most steps of Newton's method.
            progress: Whether to show a progress bar; ``None`` for after two seconds, in a terminal or notebook.

        Raises:
            NumericalError: If the loss is not finite at the start.
        """
        return newton(loss, start, self.newton_step, rtol=rtol, steps=steps, progress=progress)


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
    starts: list[Tensor | None] = [None] * len(blocks)
    if initial is not None:
        starts = list(initial.detach().view(len(b), -1).split(width, dim=1))
    solution = joined_solutions([solve(block, start) for block, start in zip(blocks, starts, strict=True)])
    return replace(solution, value=solution.value.reshape(b.shape))


def residual_of(problem: Problem, b: Float[Tensor, "d k"], x: Float[Tensor, "d k"]) -> Float[Tensor, " k"]:
    """The true relative residual ``|b - Λ x| / |b|`` of each column, float64."""
    return relative(b - problem.precision @ x, b)


def relative(rest: Float[Tensor, "d k"], b: Float[Tensor, "d k"]) -> Float[Tensor, " k"]:
    """The length of each column beside that of another, or itself where the other is zero; float64."""
    size = torch.linalg.vector_norm(wide(b), dim=0)
    return torch.linalg.vector_norm(wide(rest), dim=0) / torch.where(size > 0, size, 1.0)
