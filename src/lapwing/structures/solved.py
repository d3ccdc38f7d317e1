"""The full covariance, never written down: by a solve for every answer, or by draws that are solved for once."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import final

import torch

from lapwing.ground.errors import check_count, check_kind
from lapwing.linear.perturbation import NOISE, Perturbation
from lapwing.linear.solvers import CG, Perturb, Root, Solver
from lapwing.posteriors import MatrixFreePosterior, Posterior, SampledPosterior
from lapwing.structures.lowrank import LowRank
from lapwing.structures.summed import Fits, Task, check_products

logger = logging.getLogger(__name__)

OVERSAMPLED = 10
"""Columns of a preconditioner beyond its rank."""

MUCH = 2**32
"""Bytes that draws may take without a word (4 GiB)."""


@final
@dataclass(frozen=True)
class MatrixFree(Fits):
    """The full covariance by products with Λ = G + A alone: no structure is imposed, nothing is d × d.

    A variance is a solve against a Jacobian row, a draw a solve against noise, the log determinant an ``Estimate``.

    Args:
        solver: Solves with Λ, by default conjugate gradients preconditioned with ``LowRank(100)``.
        sqrt: Draws from N(0, Λ⁻¹): ``Perturb()``, ``Contour()`` or ``Lanczos()``.

    Raises:
        ConfigError: If one is of another kind.
        UnsupportedError: If the curvature is not the ``GGN``.

    Cost:
        A forward pass over the data. The first solve builds the preconditioner. Products keep up to 2 GiB of what does
        not depend on their columns where that is enough, else they read the training data once an iteration; a solve
        holds eight float64 blocks, up to the solver's ``max_bytes``.

    Example:
        >>> import torch, lapwing as lw
        >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(9, 2), torch.arange(9) % 3
        >>> posterior = lw.Laplace(lw.Categorical(), structure=lw.MatrixFree(lw.CG())).fit(model, (x, y))
        >>> posterior.predict(x[:2]).probs.shape
        torch.Size([2, 3])
    """

    solver: Solver = field(default_factory=lambda: CG(preconditioner=LowRank(100)))
    sqrt: Root = field(default_factory=Perturb)

    def __post_init__(self) -> None:
        check_kind("solver=", self.solver, (Solver,), "CG()")
        check_kind("sqrt=", self.sqrt, (Root,), "Perturb()")

    def fit(self, task: Task) -> Posterior:
        """The posterior of a task in this structure."""
        check_products(task)
        return task.posterior(MatrixFreePosterior, task.totals(), self.solver, self.sqrt)


@final
@dataclass(frozen=True)
class Sampled(Fits):
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

    def fit(self, task: Task) -> Posterior:
        """The posterior of a task in this structure."""
        check_products(task)
        none = task.model.network.weights.new_empty(task.model.network.size, 0)
        totals = task.totals()
        warn_of_memory(task, self.solver, self.samples)
        posterior = task.posterior(SampledPosterior, totals, self.solver, Perturbation(none, none))
        generator = torch.Generator().manual_seed(self.seed)
        return posterior.resampled(self.samples, max_bytes=self.max_bytes, generator=generator)


def warn_of_memory(task: Task, solver: Solver, draws: int) -> None:
    """Say what memory draws will take where that is much, before any is solved for.

    Args:
        task: What is to be fitted.
        solver: Solves for them.
        draws: How many.
    """
    recipe, d = getattr(solver, "preconditioner", None), task.model.network.size
    rank = min(recipe.rank + OVERSAMPLED, d) if isinstance(recipe, LowRank) else 0
    needed = d * (16 * rank + (3 * task.model.network.like.itemsize + 64) * draws)
    if needed > MUCH:
        words = (
            "%d draws of %s weights will take about %s MiB, of which the preconditioner takes %s. KFAC() takes one "
            "pass over the data; CG(preconditioner=KFAC()) fewer bytes"
        )
        logger.warning(words, draws, f"{d:,}", f"{needed >> 20:,}", f"{16 * rank * d >> 20:,}")
