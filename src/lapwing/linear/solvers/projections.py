"""Alternating projections: exact solves for blocks of coordinates, one after the other."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import check_count, check_fraction
from lapwing.ground.progress import Bar
from lapwing.ground.results import Solution, Stopped
from lapwing.linalg import Dense
from lapwing.linear.problem import Problem
from lapwing.linear.solvers.base import Solver, in_blocks, relative, residual_of


@final
@dataclass(frozen=True)
class AlternatingProjections(Solver):
    """Block Gauss-Seidel for ``(s K + N) x = b``: the block with the largest residual is solved for exactly.

        x_I ← x_I + C_II⁻¹ r_I,   r ← r - C_{:I} C_II⁻¹ r_I,   C = s K + N        (Wu et al. 2024)

    Each step lowers ``|x - x*|_C`` for every column. Blocks are consecutive coordinates, their factors kept, so that
    data in an order that puts neighbours together converge fastest.

    Args:
        block: Coordinates to a block.
        epochs: Most passes, each of as many steps as there are blocks.
        rtol: Relative residual of the worst column at which it ends.
        progress: Whether to show a progress bar with the residual; ``None`` for after two seconds, in a terminal or
            notebook.

    Raises:
        ConfigError: If a number makes no sense.

    Cost:
        A step: ``block`` rows, and ``n · block`` multiplications a column; the factors of all blocks take ``n · block``
        numbers.

    Example:
        >>> AlternatingProjections(block=500)
        AlternatingProjections(block=500, epochs=50, rtol=0.01, progress=None)
    """

    cure = "more epochs, a larger block, or CG()"

    block: int = 1000
    epochs: int = 50
    rtol: float = 1e-2
    progress: bool | None = None

    def __post_init__(self) -> None:
        check_count("block", self.block)
        check_count("epochs", self.epochs)
        check_fraction("rtol", self.rtol, "AlternatingProjections(rtol=1e-2)")

    def solve(
        self, problem: Problem, b: Float[Tensor, "n *k"], *, initial: Float[Tensor, "n *k"] | None = None
    ) -> Solution:
        """See ``Solver.solve``."""
        return in_blocks(partial(self._projected, problem), problem, b, initial, b.numel())

    def with_progress(self, progress: bool) -> AlternatingProjections:
        """See ``Solver.with_progress``."""
        return replace(self, progress=progress)

    def _projected(self, problem: Problem, b: Float[Tensor, "n k"], start: Float[Tensor, "n k"] | None) -> Solution:
        """The solutions for all columns, the residual kept up to date."""
        blocks = torch.arange(problem.size, device=b.device).split(self.block)
        factors: dict[int, Dense] = {}
        if start is None:
            x = torch.zeros_like(b)
            rest = b.clone()
        else:
            x = start.clone()
            rest = b - problem.precision @ start
        size = torch.linalg.vector_norm(b, dim=0)
        size = torch.where(size > 0, size, 1.0)
        residual = relative(rest, b)
        taken = 0
        steps = self.epochs * len(blocks)
        stopped: Stopped = "interrupted"
        bar = Bar("alternating projections", most=steps, progress=self.progress)
        with suppress(KeyboardInterrupt), bar:
            while float(residual.max()) > self.rtol and taken < steps:
                worst = int(torch.stack([(rest[part] / size).square().sum() for part in blocks]).argmax())
                index = blocks[worst]
                rows = problem.scale * problem.curvature.rows(index)
                rows[torch.arange(len(index)), index] += problem.prior.values[index]
                if worst not in factors:
                    factors[worst] = Dense(rows[:, index])
                change = factors[worst].solve(rest[index])
                x[index] += change
                rest -= rows.mT @ change
                residual = relative(rest, b)
                taken += 1
                bar.update(said=f"residual {float(residual.max()):.1e}, done at {self.rtol:.1e}")
            stopped = "converged" if bool((residual <= self.rtol).all()) else "iterations"
        if stopped == "interrupted":
            residual = residual_of(problem, b, x)
        passes = math.ceil(taken / len(blocks))
        matvecs = b.shape[1] * passes
        return Solution(x, residual, taken, matvecs, stopped)
