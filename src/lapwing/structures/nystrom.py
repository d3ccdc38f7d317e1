"""ELLA: the directions a few training gradients span, what all data say about them, and the prior in all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, final, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.features import TangentFeatures
from lapwing.curvature.sums import Tally, Totals, visit
from lapwing.errors import ConfigError, check_count, check_kind, check_option, check_positive
from lapwing.nystrom import EarlyStopping, LandmarkRows, Reservoir, Span, Watch, fill, span
from lapwing.posteriors import NystromPosterior, NystromReport, Posterior
from lapwing.posteriors.nystrom import metric_of
from lapwing.problem import Training
from lapwing.results import Estimate
from lapwing.structures.task import Task, check_products
from lapwing.types import Inputs

Landmarks: TypeAlias = Literal["uniform", "leverage", "pivoted"]

CHECKED = 64
"""Training examples at which the error of the features is measured."""


@final
@dataclass(frozen=True)
class Nystrom:
    """ELLA: the posterior inside the span of K directions, which M training gradients choose (Deng et al. 2022).

    The rows ``J̃`` of M landmarks, pairs of a training input and an output, have the Gram matrix ``J̃ A⁻¹ J̃ᵀ``; its K
    leading eigenpairs (λ, u) give orthonormal directions ``v = A^-½ J̃ᵀ u / √λ`` of weight space in the prior's units
    and features ``φ(x) = J(x) A^-½ V`` with ``φ φᵀ ≈ J A⁻¹ Jᵀ``. One pass over the data sums ``S = Σ φᵀ B φ``:

        cov f(x) = φ (I + S)⁻¹ φᵀ + (J A⁻¹ Jᵀ - φ φᵀ)                             (equation 9, without residual)

    Args:
        rank: Directions K.
        samples: Landmarks M.
        landmarks: How they are drawn: ``"uniform"``, by ridge ``"leverage"`` scores (Musco & Musco 2017), or as the
            pivots of a randomly ``"pivoted"`` Cholesky factorisation (Chen et al. 2023), both among 4 M uniform ones.
        residual: Whether the prior keeps its variance outside the span; ``False`` is the method as published, whose
            variance vanishes far from the data.
        tolerance: Eigenvalues below this part of the largest are rounding, and left out.
        stopping: Adds data only as long as they improve held-out predictions.
        max_bytes: Bytes for the rows of the landmarks: beyond, blocks of them are made again when needed.
        seed: Of the landmarks.

    Raises:
        ConfigError: If a number is not positive, or there are fewer landmarks than directions.
        TooLargeError: If the Gram matrix would not fit ``max_bytes``.
        UnsupportedError: If the curvature is not the ``GGN``.

    Cost:
        A pass over the data without the network; a forward and a backward pass for each landmark, ``M² d / 2`` and
        ``M³``; then one pass with c backward passes, or 2 K forward passes, an example. Memory ``d K`` numbers and
        ``max_bytes``. A prediction: the same passes for its inputs.

    Example:
        >>> import torch, lapwing as lw
        >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(9, 2), torch.arange(9) % 3
        >>> posterior = lw.Laplace(lw.Categorical(), structure=lw.Nystrom(rank=4, samples=12)).fit(model, (x, y))
        >>> posterior.report.kept, posterior.predict(x[:2]).probs.shape
        (4, torch.Size([2, 3]))
    """

    rank: int = 20
    samples: int = 2000
    landmarks: Landmarks = "uniform"
    residual: bool = True
    tolerance: float = 1e-6
    stopping: EarlyStopping | None = None
    max_bytes: int = 2**31
    seed: int = 0

    def __post_init__(self) -> None:
        check_option("landmarks", self.landmarks, get_args(Landmarks))
        check_count("rank", self.rank)
        check_count("max_bytes", self.max_bytes)
        check_positive("tolerance", self.tolerance)
        if self.stopping is not None:
            check_kind("stopping=", self.stopping, (EarlyStopping,), "EarlyStopping((x, y))")
        if self.samples < self.rank or self.tolerance >= 1:
            raise ConfigError(
                "at least as many samples as the rank, and a tolerance below 1",
                f"rank={self.rank}, samples={self.samples}, tolerance={self.tolerance}",
                "Nystrom(rank=20, samples=2000)",
            )

    def fit(self, task: Task) -> Posterior:
        """The posterior of a task in this structure."""
        check_products(task)
        with torch.no_grad():
            prior = task.prior.diagonal(task.network.uncertain, task.network.like.double())
            outputs, generator = task.survey.output.numel(), torch.Generator().manual_seed(self.seed)
            landmarks, checked = (Reservoir(self.samples, outputs, generator), Reservoir(CHECKED, 1, generator))
            validated = Reservoir(1 if self.stopping is None else self.stopping.size, 1, generator)
            fill(task.data, landmarks, checked, validated)
            training = Training(task.network, task.survey, task.data, task.likelihood, landmarks.seen)
            rows = LandmarkRows(training, landmarks.pairs, prior.rsqrt().to(task.network.like), self.max_bytes)
            found = span(rows, rows.gram(), self.rank, self.tolerance)
            error = self._error(task, found, 1.0 / prior, checked.examples[0])
            watch = self._watch(task, found, prior, validated.examples)
            compressed, totals, partial = accumulated(task, found.changes, watch)
        pairs = torch.stack([rows.pairs.examples, rows.pairs.outputs], dim=1)
        trace = () if watch is None else tuple(watch.trace)
        report = NystromReport(found.eigenvalues, found.changes.shape[1], pairs, error, trace, partial)
        setting = (task.network, task.survey, task.likelihood, task.prior, totals, task.likelihood, ())
        return NystromPosterior(*setting, found.changes, compressed, self.residual, report, data=task.data)

    def _watch(
        self, task: Task, found: Span, prior: Float[Tensor, " d"], examples: tuple[Inputs, Tensor]
    ) -> Watch | None:
        if self.stopping is None:
            return None
        variances = (1.0 / prior,) if self.residual else ()
        features = TangentFeatures(task.network, task.survey, task.likelihood, found.changes, variances)
        return Watch(self.stopping, features, metric_of(found.changes, prior), examples, self.seed)

    def _error(self, task: Task, found: Span, variance: Float[Tensor, " d"], inputs: Inputs) -> Estimate:
        """``tr(K - φφᵀ) / tr K``, a ratio of means over examples, with its standard error to first order."""
        features = TangentFeatures(task.network, task.survey, task.likelihood, found.changes, (variance,)).of(inputs)
        whole = features.covariances[0].diagonal(dim1=-2, dim2=-1).flatten(1).sum(1)
        missed = whole - features.values.flatten(1).square().sum(1)
        ratio = missed.mean() / whole.mean()
        spread = Estimate.of((missed - ratio * whole) / whole.mean())
        return Estimate(float(ratio), spread.stderr, spread.samples)


def accumulated(
    task: Task, changes: Float[Tensor, "d k"], watch: Watch | None
) -> tuple[Float[Tensor, "k k"], Totals, bool]:
    """``S = Σ φᵀ B φ`` in float64, sums over the same data, and whether data were left out.

    Args:
        task: The task.
        changes: W.
        watch: Says when to stop; then S is that of the smallest validation loss.

    Cost:
        One pass over the data, as far as needed.
    """
    features = TangentFeatures(task.network, task.survey, task.likelihood, changes)
    total = torch.zeros(changes.shape[1], changes.shape[1], dtype=torch.float64, device=changes.device)
    tally = Tally(task.likelihood)
    examples, size = 0, features.chunk if watch is None else min(features.chunk, watch.every)
    for forward, f, y in visit(task.network, task.survey, task.data, task.likelihood, size):
        values = features.of_pass(forward).values
        curved = task.likelihood.hessian(f.double(), y) @ values
        total += values.flatten(0, -2).mT @ curved.flatten(0, -2)
        tally.add(forward, f, y)
        examples += len(f)
        if watch is not None and watch.due(examples):
            watch.measure(total, tally.totals())
            if watch.over:
                break
    totals = tally.totals()
    if watch is None:
        return total, totals, False
    if watch.trace[-1][0] < examples:
        watch.measure(total, totals)
    assert watch.best is not None
    return watch.best.curvature, watch.best.totals, watch.best.totals.examples < examples
