"""The directions the data determined best, and the prior in all others."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal, TypeAlias, final, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing import linalg
from lapwing.curvature.blocked import BlockedCurvature
from lapwing.curvature.diagonal import DiagonalSum
from lapwing.curvature.kinds import Hessian
from lapwing.curvature.sweep import sweep
from lapwing.ground.errors import ConfigError, NumericalError, check_count, check_fraction, check_option
from lapwing.ground.precision import DOUBLE, WIDE, has_double, wide
from lapwing.jacobian.model import Model
from lapwing.jacobian.products.hessian import hessian_product
from lapwing.jacobian.products.linearisation import Linearisation
from lapwing.linalg import nystrom, randomised_eigenpairs, top_eigenpairs
from lapwing.linear.gauss_newton import GGNProduct
from lapwing.linear.preconditioners.base import CurvatureRecipe
from lapwing.linear.problem import Problem
from lapwing.posteriors import Posterior, WeightPosterior
from lapwing.posteriors.rounding import check_rounding
from lapwing.structures.base import FitTask, Structure, check_products

logger = logging.getLogger(__name__)

Method: TypeAlias = Literal["randomised", "lanczos", "nystrom"]

FIRST = 16
"""Rank an adaptive search begins with; it doubles from there."""

DEARER = 4
"""Times that products in float64 may take those of the network's own type, counted in multiplications."""


@final
@dataclass(frozen=True)
class LowRank(CurvatureRecipe, Structure):
    """``Λ = U diag(λ) Uᵀ + A``: the top eigenpairs of the curvature G, and the exact prior in the complement.

    What is left out takes away at most ``tr((G - U diag(λ) Uᵀ) A⁻¹)`` of the effective dimension
    ``γ = tr(G (G + A)⁻¹)``; the diagonal of G is exact, from the layer factors.

    Args:
        rank: Eigenpairs kept, or the most that may be.
        tolerance: With one, the fewest are kept that leave out at most this fraction of the effective dimension, by
            the bound above at the fitted prior and noise.
        method: ``"randomised"`` (Halko et al. 2011: few products, good where the spectrum falls), ``"lanczos"`` (block
            Lanczos: more products, accurate eigenpairs) or ``"nystrom"`` (Tropp et al. 2017: fewest products).
        seed: Of the random start.

    Raises:
        ConfigError: If the rank is not positive or the tolerance not between 0 and 1.
        NumericalError: If of the directions asked for some are nothing but rounding, beside a far smaller prior.
        UnsupportedError: If the curvature is neither the ``GGN`` nor the exact ``Hessian``, whose positive part alone
            is held, by block Lanczos whatever the method: without damping or tolerance.

    Cost:
        ``3 (rank + 10)`` products with G (randomised) or ``rank`` (Nyström) in blocks, with a tolerance those of every
        rank that was tried; memory ``16 d (rank + 10)`` bytes while they are found.

    Example:
        >>> import torch, lapwing as lw
        >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(9, 2), torch.arange(9) % 3
        >>> lw.Laplace(lw.Categorical(), structure=lw.LowRank(4)).fit(model, (x, y)).precision.operator
        LowRank(9 x 9, torch.float64, cpu)
    """

    rank: int = 100
    tolerance: float | None = None
    method: Method = "randomised"
    seed: int = 0

    def __post_init__(self) -> None:
        check_option("method", self.method, get_args(Method))
        check_count("rank", self.rank)
        check_count("seed", self.seed, 0)
        if self.tolerance is not None:
            check_fraction("tolerance", self.tolerance, "LowRank(1000, tolerance=0.05)")

    def fit(self, task: FitTask) -> Posterior:
        """The posterior of a task in this structure."""
        most = min(self.rank, task.model.network.size)
        if isinstance(task.curvature, Hessian):
            return self._of_hessian(task, task.curvature, most)
        check_products(task)
        curvature = GGNProduct(linearised(task.model, most))
        if self.tolerance is None:
            factor = resolved(self._factor_of_rank(curvature, most), most)
            totals = task.totals()
        else:
            diagonal = DiagonalSum(task.model.network)
            totals = sweep(task.model, task.curvature, diagonal)
            prior = task.prior.diagonal(task.model.network.uncertain, wide(task.model.network.like))
            trace = float((wide(diagonal.result().operator.diagonal()) / prior).sum())
            trace *= 1.0 + torch.finfo(task.model.network.like.dtype).eps  # its rounding may be all that is left out
            factor = self._adapted(curvature, most, trace, prior, self.tolerance)
        posterior = task.posterior(WeightPosterior, totals, BlockedCurvature(linalg.LowRank(factor)))
        rank = most if self.tolerance is None else None  # what a tolerance leaves out is told by a difference of traces
        check_rounding(posterior.curvature.operator, float(posterior.prior_diagonal.min()), rank)
        return posterior

    def _of_hessian(self, task: FitTask, curvature: Hessian, most: int) -> Posterior:
        """Of the exact Hessian the pairs whose eigenvalues are positive; elsewhere the prior is kept."""
        if self.tolerance is not None or curvature.damping:
            given = f"tolerance={self.tolerance}, damping={curvature.damping}"
            raise ConfigError("a rank alone for the exact Hessian, undamped", given, "LowRank(100) and Hessian()")
        generator = torch.Generator().manual_seed(self.seed)
        pairs = top_eigenpairs(hessian_product(task.model), most, generator=generator)
        if not len(pairs.values):
            hint = "training to a minimum, or curvature=GGN()"
            raise NumericalError("a Hessian with a positive eigenvalue", "none", hint)
        factor = pairs.vectors * pairs.values.clamp_min(0.0).sqrt().to(pairs.vectors)
        return task.posterior(WeightPosterior, task.totals(), BlockedCurvature(linalg.LowRank(wide(factor))))

    def curvature(self, problem: Problem) -> linalg.LowRank:
        """The curvature in this structure, for a preconditioner: of the full rank, found in the prior's units.

        For that the random block need not be turned into eigenpairs, which takes a product more.
        """
        whitened = problem.in_prior_units()
        rank = min(self.rank, problem.size)
        if self.method == "randomised":
            factor = nystrom(whitened, rank, power=1, generator=torch.Generator().manual_seed(self.seed))
        else:
            factor = self._factor_of_rank(whitened, rank)
        return linalg.LowRank(problem.prior.values.sqrt()[:, None] * factor)

    def _adapted(
        self, curvature: linalg.Operator, most: int, trace: float, prior: Float[Tensor, " d"], tolerance: float
    ) -> Float[Tensor, "d r"]:
        """``U diag(√λ)`` with as few columns as the tolerance asks, at most ``most``; trace is ``tr(G A⁻¹)``."""
        rank = min(FIRST, most)
        while True:
            factor = self._factor_of_rank(curvature, rank)
            fractions = left_out(wide(factor), trace, prior)
            enough = (fractions <= tolerance).nonzero()
            exhausted = rank == most or factor.shape[1] < rank
            if len(enough) or exhausted:
                break
            rank = min(2 * rank, most)
        columns = int(enough[0]) + 1 if len(enough) else factor.shape[1]
        words = (
            "LowRank kept %d eigenpairs, which leave out at most %.2g %% of the effective dimension, %.2g %% allowed"
        )
        level = logging.INFO if len(enough) else logging.WARNING
        logger.log(level, words, columns, 100 * float(fractions[columns - 1]), 100 * tolerance)
        return resolved(factor, rank)[:, :columns]

    def _factor_of_rank(self, curvature: linalg.Operator, rank: int) -> Float[Tensor, "d r"]:
        generator = torch.Generator().manual_seed(self.seed)
        if self.method == "nystrom":
            return nystrom(curvature, rank, generator=generator)
        if self.method == "lanczos":
            pairs = top_eigenpairs(curvature, rank, generator=generator)
        else:
            pairs = randomised_eigenpairs(curvature, rank, generator=generator)
        return pairs.vectors * pairs.values.clamp_min(0.0).sqrt().to(pairs.vectors)


def linearised(model: Model, columns: int) -> Linearisation:
    """The network made linear; its products in float64 where asked for, if they fit and take no more than ``DEARER``.

    An eigenvalue of the curvature that is less than the rounding of the largest is lost, whatever the prior beside it.

    Args:
        model: The network and its likelihood.
        columns: Columns of the products.
    """
    own = Linearisation(model)
    like = model.network.like
    if model.precision.products != WIDE or like.dtype == WIDE or not has_double(like.device):
        return own
    precise = own.in_precision(DOUBLE)
    if not precise.fits:
        return own
    explicit = own.cost.of_product("explicit", columns, cached=False)
    traced = own.cost.of_product("traced", columns, cached=False)
    return precise if explicit <= DEARER * traced else own


def resolved(factor: Float[Tensor, "d r"], rank: int) -> Float[Tensor, "d r"]:
    """A factor in float64, unless it has fewer columns than asked for, the others lost to rounding.

    A factor of fewer digits is taken for one with such losses; see ``linalg.LowRank.own_rounding``.

    Args:
        factor: The factor, of the type of the products.
        rank: Columns that were asked for.
    """
    return wide(factor) if factor.shape[1] == rank else factor


def left_out(factor: Float[Tensor, "d r"], trace: float, prior: Float[Tensor, " d"]) -> Float[Tensor, " r"]:
    """At most this fraction of the effective dimension is left out by the first 1, 2, ... columns of a factor F of G.

    ``tr(W (I + W)⁻¹)`` is kept, for ``W = Fᵀ A⁻¹ F``; the inverse of a leading block of ``I + W = L Lᵀ`` has as its
    trace the squares of the first rows of ``L⁻¹``.

    Args:
        factor: F.
        trace: ``tr(G A⁻¹)``.
        prior: A.
    """
    w = factor.mT @ (factor / prior[:, None])
    eye = torch.eye(len(w), dtype=w.dtype, device=w.device)
    inverse = torch.linalg.solve_triangular(torch.linalg.cholesky(eye + w), eye, upper=False)
    kept = (1.0 - inverse.square().sum(1)).cumsum(0).clamp_min(0.0)
    discarded = (trace - w.diagonal().cumsum(0)).clamp_min(0.0)
    total = kept + discarded
    return torch.where(total > 0, discarded / total, 0.0)
