"""Cheap structured approximations of a posterior precision, for Krylov methods to start from.

A preconditioner is any ``Structured`` operator P ≈ Λ. The recipes here make one from what they know of the problem; the
structures ``Diagonal()``, ``KFAC()`` and ``LowRank()`` are recipes too. The closer P, the fewer the iterations; each
costs a solve with P, which should be cheap beside a product with Λ.
"""

from __future__ import annotations

from lapwing.linear.preconditioners.base import CurvatureRecipe, GivenCurvature, Preconditioner, approximation
from lapwing.linear.preconditioners.pivoted_cholesky import PivotedCholesky, Pivots
from lapwing.linear.preconditioners.rank_one import RankOne
from lapwing.linear.preconditioners.rows import Subsample, TopRows, WeightedExamples, balanced, balanced_by_shape

__all__ = [
    "CurvatureRecipe",
    "GivenCurvature",
    "PivotedCholesky",
    "Pivots",
    "Preconditioner",
    "RankOne",
    "Subsample",
    "TopRows",
    "WeightedExamples",
    "approximation",
    "balanced",
    "balanced_by_shape",
]
