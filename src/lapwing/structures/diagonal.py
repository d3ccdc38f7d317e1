"""Independent weights: the diagonal of the curvature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from lapwing import linalg
from lapwing.curvature.diagonal import DiagonalSum
from lapwing.linear.preconditioners.base import CurvatureRecipe
from lapwing.linear.problem import Problem
from lapwing.posteriors import Posterior
from lapwing.structures.base import FitTask, Structure


@final
@dataclass(frozen=True)
class Diagonal(CurvatureRecipe, Structure):
    """Independent weights: the diagonal of the curvature, Σ_nk (J_nᵀ u_nk)² for the columns u of the roots of B.

    Cost:
        Memory d. A pass over the data with c cotangents; with draws of N(0, B) where an example has many
        outputs, its positions included, which is logged, see ``GGN``; with none for a last layer.

    Example:
        >>> import torch, lapwing as lw
        >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(9, 2), torch.arange(9) % 3
        >>> lw.Laplace(lw.Categorical(), structure=Diagonal()).fit(model, (x, y)).precision.operator
        Diagonal(9 x 9, torch.float32, cpu)
    """

    adds_to = (linalg.Diagonal,)

    def fit(self, task: FitTask) -> Posterior:
        """The posterior of a task in this structure."""
        return task.affordable().summed(DiagonalSum(task.model.network))

    def curvature(self, problem: Problem) -> linalg.Structured:
        """The curvature in this structure, for a preconditioner."""
        return linalg.Diagonal(problem.curvature.diagonal())
