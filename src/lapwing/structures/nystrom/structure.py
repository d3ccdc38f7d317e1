"""ELLA: the directions a few training gradients span, what all data say about them, and the prior in all others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final, get_args

import torch

from lapwing.curvature.fold import Fold
from lapwing.curvature.tangent_features import TangentFeatures
from lapwing.ground.data.inputs import Inputs
from lapwing.ground.distributed import check_alone
from lapwing.ground.errors import ConfigError, check_count, check_fraction, check_kind, check_option
from lapwing.ground.precision import WIDE, Precision, at_least_single, wide, wide_like
from lapwing.ground.results import Estimate
from lapwing.linear.log_det_ratio import metric_root
from lapwing.posteriors import NystromPosterior, NystromReport, Posterior
from lapwing.structures.base import FitTask, Structure, check_products
from lapwing.structures.nystrom.landmarks import LandmarkRows, Landmarks, landmark_candidates, span
from lapwing.structures.nystrom.reservoir import Reservoir, fill
from lapwing.structures.nystrom.stopping import NystromStopping, Sums, ValidationMonitor

CHECKED = 64
"""Training examples at which the error of the features is measured."""


@final
@dataclass(frozen=True)
class Nystrom(Structure):
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
        tolerance: Eigenvalues below this part of the largest are rounding, and left out; ``None`` for 1e-12 where the
            Gram matrix is made of products in float64, as it is on CPUs and data-centre GPUs, and 1e-6 otherwise.
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
    tolerance: float | None = None
    stopping: NystromStopping | None = None
    max_bytes: int = 2**31
    seed: int = 0

    def __post_init__(self) -> None:
        check_option("landmarks", self.landmarks, get_args(Landmarks))
        check_count("rank", self.rank)
        check_count("max_bytes", self.max_bytes)
        check_count("seed", self.seed, 0)
        if self.tolerance is not None:
            check_fraction("tolerance", self.tolerance, "Nystrom(tolerance=1e-6)")
        check_count("samples", self.samples, usual=2000)
        if self.stopping is not None:
            check_kind("stopping=", self.stopping, (NystromStopping,), "NystromStopping((x, y))")
        if self.samples < self.rank:
            raise ConfigError(
                "at least as many samples as the rank",
                f"rank={self.rank}, samples={self.samples}",
                "Nystrom(rank=20, samples=2000)",
            )

    def fit(self, task: FitTask) -> Posterior:
        """The posterior of a task in this structure."""
        check_products(task)
        check_alone(task.model.data.shared, "Nystrom()", "KFAC() or Sampled(64)")
        network = task.model.network
        generator = torch.Generator().manual_seed(self.seed)

        # one pass without the network: candidates for landmarks, examples to measure the error and to augment
        pool = Reservoir(landmark_candidates(self.landmarks, self.samples), task.model.width, generator)
        checked = Reservoir(CHECKED, 1, generator)
        to_augment = Reservoir(1 if self.stopping is None else self.stopping.size, 1, generator)
        fill(task.model.data, pool, checked, to_augment)

        prior = task.prior.diagonal(network.uncertain, wide(network.like))
        with torch.no_grad():
            deviations = prior.rsqrt().to(at_least_single(network.like))
            eigenvalues, changes, pairs = span(
                LandmarkRows(task.model, pool.pairs, deviations, self.max_bytes),  # freed once the span is found
                self.landmarks,
                self.samples,
                self.rank,
                rounding_of(task.model.precision) if self.tolerance is None else self.tolerance,
                generator,
            )
            features = TangentFeatures(task.model, changes)
            with_prior = replace(features, variances=(1.0 / prior,))
            error = missed(with_prior, checked.examples[0])
            monitor = None
            if self.stopping is not None:
                watched = with_prior if self.residual else features
                root = metric_root(changes, prior)
                monitor = ValidationMonitor(self.stopping, watched, root, to_augment.examples, self.seed)
            curvature, totals = accumulated(features, monitor)

        trace = () if monitor is None else tuple(monitor.trace)
        partial = monitor is not None and totals.examples < monitor.trace[-1][0]
        report = NystromReport(eigenvalues, changes.shape[1], pairs, error, trace, partial)
        compressed = (curvature + curvature.mT) / 2
        return task.posterior(NystromPosterior, totals, changes, compressed, self.residual, report, partial=partial)


def rounding_of(precision: Precision) -> float:
    """The part of the largest eigenvalue below which those of the landmarks' Gram matrix are rounding.

    Directions of small eigenvalues count where targets have little noise: one of 1e-8 of the largest is known to the
    data once their noise precision is 1e8 times what the prior leaves open. Left out they would keep the prior's
    variance.

    Args:
        precision: That of its products.
    """
    return 1e-12 if precision.products == WIDE else 1e-6


def accumulated(features: TangentFeatures, monitor: ValidationMonitor | None = None) -> Sums:
    """``S = Σ φᵀ B φ`` and its totals, in one pass over the data, which are read as far as needed.

    Args:
        features: Says how φ is computed, and of which data.
        monitor: Says when to stop; S is then that of the smallest validation loss.

    Cost:
        A forward and c backward passes, or two forward passes a feature, for each example; the sum in float64.
    """
    likelihood = features.model.likelihood
    k = features.changes.shape[1]
    total = torch.zeros(k, k, **wide_like(features.changes))
    chunk = features.chunk if monitor is None else min(features.chunk, monitor.every)
    data = Fold(features.model, chunk)
    examples = 0
    for forward, f, y in data:
        phi = features.of_pass(forward).values
        b_phi = likelihood.hessian(wide(f), y.to(phi.device)) @ phi
        total += phi.flatten(0, -2).mT @ b_phi.flatten(0, -2)
        examples += len(f)
        if monitor is not None and monitor.due(examples):
            monitor.measure(total.clone(), data.totals())
            if monitor.over:
                break
    if monitor is None:
        return total, data.totals()
    if monitor.trace[-1][0] < examples:
        monitor.measure(total, data.totals())
    return monitor.best


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
