"""ELLA: the directions a few training gradients span, what all data say about them, and the prior in all others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final, get_args

import torch

from lapwing.curvature.features import TangentFeatures
from lapwing.curvature.fold import Fold
from lapwing.ground.data.inputs import Inputs
from lapwing.ground.distributed import check_alone
from lapwing.ground.errors import ConfigError, check_count, check_fraction, check_kind, check_option
from lapwing.ground.results import Estimate
from lapwing.linear.log_det_ratio import metric_root
from lapwing.posteriors import NystromPosterior, NystromReport, Posterior
from lapwing.structures.ella.landmarks import LandmarkRows, Landmarks, candidates, span
from lapwing.structures.ella.sampling import Reservoir, fill
from lapwing.structures.ella.stopping import EarlyStopping, Sums, Watch
from lapwing.structures.summed import Fits, Task, check_products

CHECKED = 64
"""Training examples at which the error of the features is measured."""


@final
@dataclass(frozen=True)
class Nystrom(Fits):
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
        check_count("seed", self.seed, 0)
        check_fraction("tolerance", self.tolerance, "Nystrom(tolerance=1e-6)")
        check_count("samples", self.samples, usual=2000)
        if self.stopping is not None:
            check_kind("stopping=", self.stopping, (EarlyStopping,), "EarlyStopping((x, y))")
        if self.samples < self.rank:
            raise ConfigError(
                "at least as many samples as the rank",
                f"rank={self.rank}, samples={self.samples}",
                "Nystrom(rank=20, samples=2000)",
            )

    def fit(self, task: Task) -> Posterior:
        """The posterior of a task in this structure."""
        check_products(task)
        check_alone(task.model.data.shared, "Nystrom()", "KFAC() or Sampled(64)")
        outputs, generator = task.model.width, torch.Generator().manual_seed(self.seed)
        pool = Reservoir(candidates(self.landmarks, self.samples), outputs, generator)
        checked = Reservoir(CHECKED, 1, generator)
        validated = Reservoir(1 if self.stopping is None else self.stopping.size, 1, generator)
        fill(task.model.data, pool, checked, validated)
        prior = task.prior.diagonal(task.model.network.uncertain, task.model.network.like.double())
        with torch.no_grad():
            deviations = prior.rsqrt().to(task.model.network.like)
            eigenvalues, changes, pairs = span(
                LandmarkRows(task.model, pool.pairs, deviations, self.max_bytes),  # freed once the span is found
                self.landmarks,
                self.samples,
                self.rank,
                self.tolerance,
                generator,
            )
            features = TangentFeatures(task.model, changes)
            wide = replace(features, variances=(1.0 / prior,))
            error = missed(wide, checked.examples[0])
            watch = None
            if self.stopping is not None:
                shown = wide if self.residual else features
                watch = Watch(self.stopping, shown, metric_root(changes, prior), validated.examples, self.seed)
            curvature, totals = accumulated(features, watch)
        trace = () if watch is None else tuple(watch.trace)
        partial = watch is not None and totals.examples < watch.trace[-1][0]
        report = NystromReport(eigenvalues, changes.shape[1], pairs, error, trace, partial)
        own = (changes, (curvature + curvature.mT) / 2, self.residual, report)
        return task.posterior(NystromPosterior, totals, *own, partial=partial)


def accumulated(features: TangentFeatures, watch: Watch | None = None) -> Sums:
    """``S`` and its totals, in one pass over the data, which are read as far as needed.

    Args:
        features: Says how φ is computed, and of which data.
        watch: Says when to stop; S is then that of the smallest validation loss.

    Cost:
        A forward and c backward passes, or two forward passes a feature, for each example; the sum in float64.
    """
    k, likelihood = features.changes.shape[1], features.model.likelihood
    total = torch.zeros(k, k, dtype=torch.float64, device=features.changes.device)
    data, examples = Fold(features.model, features.chunk if watch is None else min(features.chunk, watch.every)), 0
    for forward, f, y in data:
        values = features.of_pass(forward).values
        curved = likelihood.hessian(f.double(), y) @ values
        total += values.flatten(0, -2).mT @ curved.flatten(0, -2)
        examples += len(f)
        if watch is not None and watch.due(examples):
            watch.measure(total.clone(), data.totals())
            if watch.over:
                break
    if watch is None:
        return total, data.totals()
    if watch.trace[-1][0] < examples:
        watch.measure(total, data.totals())
    return watch.best


def missed(features: TangentFeatures, inputs: Inputs) -> Estimate:
    """``tr(K - φφᵀ) / tr K`` for the tangent kernel ``K = J V Jᵀ``, with the standard error of a ratio of means.

    Args:
        features: φ, and the prior's variance V.
        inputs: Examples to measure it at.
    """
    found = features.of(inputs)
    whole = found.covariances[0].diagonal(dim1=-2, dim2=-1).flatten(1).sum(1)
    lost = whole - found.values.flatten(1).square().sum(1)
    size = whole.mean().clamp_min(torch.finfo(whole.dtype).tiny)
    ratio = lost.mean() / size
    spread = Estimate.of((lost - ratio * whole) / size)
    return Estimate(float(ratio), spread.stderr, spread.samples)
