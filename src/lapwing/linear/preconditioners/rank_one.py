"""The likelihood as a whole, linearised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from lapwing.curvature.sums import score
from lapwing.linalg import LowRank
from lapwing.linear.preconditioners.base import CurvatureRecipe, training_of
from lapwing.linear.problem import Problem


@final
@dataclass(frozen=True)
class RankOne(CurvatureRecipe):
    """``P = s ∇ ∇ᵀ + A`` with ∇ the gradient of the log likelihood (the likelihood as a whole linearised).

    The cheapest and the least: it mends one eigenvalue, and none at an optimum of the likelihood.

    Cost:
        A gradient over the data.
    """

    def curvature(self, problem: Problem) -> LowRank:
        """``∇ ∇ᵀ``."""
        training = training_of(problem, self)
        gradient = score(training)
        return LowRank(gradient[:, None])
