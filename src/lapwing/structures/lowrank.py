"""The directions the data determined best, and the prior in all others."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal, TypeAlias, final, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing import linalg
from lapwing.curvature.diagonal import DiagonalSum
from lapwing.curvature.hessian import GGNProduct
from lapwing.curvature.sums import Held, sweep
from lapwing.errors import ConfigError, check_option
from lapwing.linalg.eigenpairs import randomised_eigenpairs, top_eigenpairs
from lapwing.posteriors import Posterior
from lapwing.problem import Problem
from lapwing.structures.task import Task, check_products

logger = logging.getLogger(__name__)

Method: TypeAlias = Literal["randomised", "lanczos"]

FIRST = 16
"""Rank an adaptive search begins with; it doubles from there."""


@final
@dataclass(frozen=True)
class LowRank:
    """``Λ = U diag(λ) Uᵀ + A``: the top eigenpairs of the curvature G, and the exact prior in the complement.

    Discarding the eigenvalues below the r-th takes away at most ``(tr G - Σ_{i≤r} λ_i) / min A`` of the effective
    dimension; the trace is exact, from the layer factors.

    Args:
        rank: Eigenpairs kept, or the most that may be.
        tolerance: With one, the fewest are kept that leave out at most this fraction of the effective dimension, by
            the bound above at the fitted prior and noise.
        method: ``"randomised"`` (Halko et al. 2011: few products, good where the spectrum falls) or ``"lanczos"``
            (block Lanczos: more products, accurate eigenpairs).
        seed: Of the random start.

    Raises:
        ConfigError: If the rank is not positive or the tolerance not between 0 and 1.
        UnsupportedError: If the curvature is not the ``GGN``.

    Cost:
        About ``2 rank`` products with G (randomised) in blocks; memory ``d rank``.

    Example:
        >>> import lapwing as lw
        >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(9, 2), torch.arange(9) % 3
        >>> lw.Laplace(lw.Categorical(), structure=lw.LowRank(4)).fit(model, (x, y)).precision.operator
        LowRank(9 x 9, torch.float32, cpu)
    """

    rank: int = 100
    tolerance: float | None = None
    method: Method = "randomised"
    seed: int = 0

    def __post_init__(self) -> None:
        check_option("method", self.method, get_args(Method))
        if self.rank < 1 or not (self.tolerance is None or 0 < self.tolerance < 1):
            raise ConfigError(
                "a positive rank, and a tolerance between 0 and 1 or None",
                f"rank={self.rank}, tolerance={self.tolerance}",
                "LowRank(100), or LowRank(1000, tolerance=0.05)",
            )

    def fit(self, task: Task) -> Posterior:
        """The posterior of a task in this structure."""
        check_products(task)
        diagonal = DiagonalSum(task.network)
        setting = (task.network, task.survey, task.data, task.likelihood)
        totals = sweep(*setting, task.curvature, diagonal)
        trace = diagonal.result().operator.trace()
        curvature = GGNProduct(task.network, task.survey, task.likelihood, task.data)
        smallest = float(task.prior.diagonal(task.network.uncertain, task.network.like.double()).min())
        factor = self.factor(curvature, float(trace), smallest)
        return task.posterior(totals, Held(linalg.LowRank(factor)))

    def approximate(self, problem: Problem) -> linalg.LowRank:
        """The structure as a preconditioner, in coordinates in which the prior is standard normal."""
        factor = self._factor_of_rank(problem.in_prior_units(), min(self.rank, problem.size))
        return problem.with_factor(problem.prior.values.sqrt()[:, None] * factor)

    def factor(self, curvature: linalg.Operator, trace: float, prior_precision: float) -> Float[Tensor, "d r"]:
        """``U diag(√λ)``, with as many columns as it takes.

        Args:
            curvature: G.
            trace: Its trace.
            prior_precision: The smallest prior precision.
        """
        most = min(self.rank, curvature.shape[0])
        if self.tolerance is None:
            return self._factor_of_rank(curvature, most)
        rank = min(FIRST, most)
        while True:
            factor = self._factor_of_rank(curvature, rank)
            enough, left_out = self._enough(factor.double().square().sum(0), trace, prior_precision)
            if enough is not None or rank == most or factor.shape[1] < rank:
                break
            rank = min(2 * rank, most)
        kept = factor if enough is None else factor[:, :enough]
        words = "LowRank kept %d eigenpairs, which leave out at most %.2g of the effective dimension"
        logger.log(logging.INFO if enough else logging.WARNING, words, kept.shape[1], left_out)
        return kept

    def _enough(self, values: Float[Tensor, " r"], trace: float, prior: float) -> tuple[int | None, float]:
        """The fewest eigenpairs that meet the tolerance, if they do, and the fraction they leave out at most."""
        kept = (values / (values + prior)).cumsum(0)
        discarded = (trace - values.cumsum(0)).clamp_min(0.0) / prior
        fraction = discarded / (kept + discarded)
        good = (fraction <= (self.tolerance or 0.0)).nonzero()
        return (int(good[0]) + 1, float(fraction[good[0]])) if len(good) else (None, float(fraction[-1]))

    def _factor_of_rank(self, curvature: linalg.Operator, rank: int) -> Float[Tensor, "d r"]:
        generator = torch.Generator().manual_seed(self.seed)
        find = top_eigenpairs if self.method == "lanczos" else randomised_eigenpairs
        pairs = find(curvature, rank, generator=generator)
        return pairs.vectors * pairs.values.clamp_min(0.0).sqrt().to(pairs.vectors)
