"""What solvers have in common that descend by random parts of the data: options, and columns that fit memory."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import check_count, check_fraction, check_positive
from lapwing.ground.results import Solution
from lapwing.linalg import Operator, Structured
from lapwing.linalg.lanczos import lanczos
from lapwing.linalg.operators.base import congruence
from lapwing.linear.problem import Problem
from lapwing.linear.solvers.base import Solver, in_blocks

QUADRATURE = 5
"""Nodes of the quadrature by which an error is estimated."""


@final
@dataclass(frozen=True, eq=False)
class Distance:
    """How far from the solution some values are, of each column, float64.

    Args:
        residual: Relative residual.
        error: See ``Solution``; ``None`` where the residual alone counts.
    """

    residual: Float[Tensor, " k"]
    error: Float[Tensor, " k"] | None

    @property
    def worst(self) -> float:
        """What a tolerance is held against."""
        residual = float(self.residual.max())
        return residual if self.error is None else max(residual, float(self.error.max()))


class Stochastic(Solver):
    """A solver by descent with momentum that reads a random part of the data a step; it names its options so."""

    blocks: ClassVar[int]
    """Blocks of columns it holds at once."""

    batch: int
    rtol: float
    step: float | None
    momentum: float
    seed: int
    max_bytes: int

    def __post_init__(self) -> None:
        check_count("batch", self.batch)
        check_count("max_bytes", self.max_bytes)
        check_count("seed", self.seed, 0)
        check_fraction("rtol", self.rtol, f"{type(self).__name__}(rtol=1e-2)")
        check_fraction("momentum", self.momentum, f"{type(self).__name__}(momentum=0.9)", zero=True)
        if self.step is not None:
            check_positive("step", self.step, "None")

    @abc.abstractmethod
    def descent(
        self, problem: Problem, columns: int
    ) -> Callable[[Float[Tensor, "d k"], Float[Tensor, "d k"]], Solution]:
        """The solution from right-hand sides and starts, the length of the first step settled.

        Args:
            problem: The problem.
            columns: Most columns of the blocks to come.
        """

    def solve(
        self, problem: Problem, b: Float[Tensor, "d *k"], *, initial: Float[Tensor, "d *k"] | None = None
    ) -> Solution:
        """See ``Solver.solve``.

        Raises:
            NumericalError: If ``b`` is not finite, or every step diverged.
            ShapeError: If ``b`` has no column, or ``initial`` another shape than ``b``.
        """
        width = max(1, self.max_bytes // (self.blocks * b.element_size() * problem.size))
        descend = self.descent(problem, min(width, b.numel() // problem.size))

        def solve(block: Float[Tensor, "d k"], start: Float[Tensor, "d k"] | None) -> Solution:
            return descend(block, torch.zeros_like(block) if start is None else start)

        return in_blocks(solve, problem, b, initial, width)


def squared_error(precision: Operator, rest: Float[Tensor, "d k"], prior: Structured) -> Float[Tensor, " k"]:
    """``|x - x*|²_Λ = rᵀ Λ⁻¹ r`` of each column, estimated from its residual ``r = b - Λ x``; float64.

    By a Gauss quadrature of few nodes in coordinates in which the prior is standard normal, which is what as many steps
    of preconditioned conjugate gradients would take off (Golub & Meurant 2010, chapter 12). It errs downwards, by a
    fifth at most in our tests. The residual itself tells little: where the data say much it is ``λ`` times the error.

    Args:
        precision: Λ.
        rest: r.
        prior: A, the part of Λ that is solved with.

    Cost:
        Five products with Λ.
    """
    root = prior.inverse_root()
    whitened = congruence(precision, root)
    start = root.T @ rest.to(root.device, root.dtype)
    return lanczos(whitened, start, QUADRATURE).quadrature(torch.reciprocal)
