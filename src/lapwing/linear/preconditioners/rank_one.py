"""A curvature of rank one, for a preconditioner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from lapwing.linalg import LowRank
from lapwing.linear.gauss_newton import GGNProduct
from lapwing.linear.mode.loss import LossAt
from lapwing.linear.preconditioners.base import CurvatureRecipe, model_of
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
        model = model_of(problem, self)
        return LowRank(LossAt.of(model.weights, GGNProduct(model)).score[:, None])
