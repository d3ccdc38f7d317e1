"""What every solver answers."""

from __future__ import annotations

import abc
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from lapwing.problem import Problem
from lapwing.results import Solution


@dataclass(frozen=True)
class Solver(abc.ABC):
    """A way to solve ``Λ x = b`` for the precision Λ of a problem."""

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
