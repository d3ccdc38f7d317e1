"""What every solver answers."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from lapwing.ground.results import Solution
from lapwing.linalg import Structured
from lapwing.linear.problem import Problem


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

    def prepared(self, problem: Problem) -> Structured | None:
        """The preconditioner this solver has for a problem, made on first use; ``None`` for none."""
        return None
