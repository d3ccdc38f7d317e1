"""The curvature by a partial Cholesky factorisation, for a preconditioner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, final, get_args

import torch
from torch import Tensor

from lapwing.ground.errors import check_count, check_option
from lapwing.linalg import LowRank
from lapwing.linalg.pivoted import pivoted_cholesky
from lapwing.linear.preconditioners.base import CurvatureRecipe
from lapwing.linear.problem import Problem

Pivots: TypeAlias = Literal["greedy", "random"]


@final
@dataclass(frozen=True)
class PivotedCholesky(CurvatureRecipe):
    """``P = s L Lᵀ + A`` with L the partial Cholesky factor of G at well-chosen pivots.

    Pivots are driven by the exact diagonal of G, in coordinates in which the prior is standard normal: the largest
    residual first, or drawn in proportion to it (Harbrecht et al. 2012; Chen et al. 2023). L is made once: for another
    prior it is still a factor of G, its pivots those of the prior it was made for.

    Args:
        rank: Columns of L.
        pivots: ``"greedy"`` or ``"random"``.
        block: Pivots multiplied together.
        seed: Of the random pivots.

    Raises:
        ConfigError: If the rank or the block is not positive.

    Cost:
        A pass for the diagonal, ``rank`` rows of G, which for a kernel matrix are no products; memory ``d rank``.

    Example:
        >>> import lapwing as lw
        >>> lw.solvers.CG(preconditioner=lw.preconditioners.PivotedCholesky(50)).preconditioner
        PivotedCholesky(rank=50, pivots='greedy', block=16, seed=0)
    """

    rank: int
    pivots: Pivots = "greedy"
    block: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        check_option("pivots", self.pivots, get_args(Pivots))
        check_count("rank", self.rank)
        check_count("block", self.block)
        check_count("seed", self.seed, 0)

    def curvature(self, problem: Problem) -> LowRank:
        """``L Lᵀ``."""
        prior = problem.prior.values
        root = prior.sqrt()

        def columns(index: Tensor) -> Tensor:
            return (problem.curvature.rows(index) / root[index, None] / root).mT

        factor, _ = pivoted_cholesky(
            problem.in_prior_units(),
            problem.curvature.diagonal() / prior,
            self.rank,
            random=self.pivots == "random",
            block=self.block,
            columns=columns,
            generator=torch.Generator().manual_seed(self.seed),
        )
        return LowRank(root[:, None] * factor)
