"""The full covariance, known by draws that are solved for once."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import final

import torch

from lapwing.ground.errors import check_count, check_kind
from lapwing.linear.perturbation import NOISE, Perturbation
from lapwing.linear.solvers import CG, Solver
from lapwing.posteriors import Posterior, SampledPosterior
from lapwing.structures.base import FitTask, Structure, check_products
from lapwing.structures.low_rank import LowRank

logger = logging.getLogger(__name__)

OVERSAMPLED = 10
"""Columns of a preconditioner beyond its rank."""

MUCH = 2**32
"""Bytes that draws may take without a word (4 GiB)."""


@final
@dataclass(frozen=True)
class Sampled(Structure):
    """The full covariance by draws ``ζ = Λ⁻¹ (√s R ε₁ + A^½ ε₂)``, solved for once (Antorán 2024, chapter 6).

    No structure is imposed and nothing is d × d. After one block solve, predictions are products of the Jacobian with
    the draws; with ``MatrixFree`` each needs a solve of its own, and is exact.

    Args:
        samples: Draws k: variances have a relative standard error of ``√(2/k)``.
        solver: Solves with Λ, by default conjugate gradients preconditioned with ``LowRank(100)``; ``SGD()`` reads
            mini-batches.
        seed: Of the draws' noise.
        max_bytes: Memory their noise may take.

    Raises:
        ConfigError: If there is no sample, or the solver is of another kind.
        TooLargeError: If the noise would take more; nothing is drawn.
        UnsupportedError: If the curvature is not the ``GGN``.

    Cost:
        A forward pass over the data, and a product with a root of G. The draws are solved for when they are first
        asked for: the solver's iterations, each a product with k columns. Memory ``4 d k`` numbers and the solver's.

    Example:
        >>> import lapwing as lw
        >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(9, 2), torch.arange(9) % 3
        >>> posterior = lw.Laplace(lw.Categorical(), structure=lw.Sampled(16)).fit(model, (x, y))
        >>> posterior.predict(x[:2]).probs.shape, posterior.draws.shape
        (torch.Size([2, 3]), torch.Size([9, 16]))
    """

    samples: int = 64
    solver: Solver = field(default_factory=lambda: CG(preconditioner=LowRank(100)))
    seed: int = 0
    max_bytes: int = NOISE

    def __post_init__(self) -> None:
        check_count("samples", self.samples, usual=64)
        check_count("seed", self.seed, 0)
        check_count("max_bytes", self.max_bytes, usual=NOISE)
        check_kind("solver=", self.solver, (Solver,), "CG()")

    def fit(self, task: FitTask) -> Posterior:
        """The posterior of a task in this structure."""
        check_products(task)
        totals = task.totals()
        warn_of_memory(task, self.solver, self.samples)
        no_draws = task.model.network.weights.new_empty(task.model.network.size, 0)
        posterior = task.posterior(SampledPosterior, totals, self.solver, Perturbation(no_draws, no_draws))
        generator = torch.Generator().manual_seed(self.seed)
        return posterior.resampled(self.samples, max_bytes=self.max_bytes, generator=generator)


def warn_of_memory(task: FitTask, solver: Solver, draws: int) -> None:
    """Say what memory draws will take where that is much, before any is solved for.

    Args:
        task: What is to be fitted.
        solver: Solves for them.
        draws: How many.
    """
    weights = task.model.network.size
    preconditioner = getattr(solver, "preconditioner", None)
    rank = 0
    if isinstance(preconditioner, LowRank):
        rank = min(preconditioner.rank + OVERSAMPLED, weights)
    by_preconditioner = 16 * rank * weights
    by_draws = (3 * task.model.network.like.itemsize + 64) * draws * weights
    needed = by_preconditioner + by_draws
    if needed > MUCH:
        words = (
            "%d draws of %s weights will take about %s MiB, of which the preconditioner takes %s. KFAC() takes one "
            "pass over the data; CG(preconditioner=KFAC()) fewer bytes"
        )
        logger.warning(words, draws, f"{weights:,}", f"{needed >> 20:,}", f"{by_preconditioner >> 20:,}")
