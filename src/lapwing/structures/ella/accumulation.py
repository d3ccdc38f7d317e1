"""What the data say about the features: a sum over one pass, and how much of the kernel they miss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.features import TangentFeatures
from lapwing.curvature.sums import Tally, Totals, visit
from lapwing.ground.results import Estimate
from lapwing.ground.types import Inputs
from lapwing.structures.ella.stopping import Watch


@final
@dataclass(frozen=True, eq=False)
class Accumulated:
    """Sums over data.

    Args:
        curvature: ``S = Σ φᵀ B φ = Wᵀ G W``, float64.
        totals: Sums of the likelihood over the same data.
        partial: Whether data were left out because they raised the validation loss.
    """

    curvature: Float[Tensor, "k k"]
    totals: Totals
    partial: bool


def accumulated(features: TangentFeatures, watch: Watch | None = None) -> Accumulated:
    """``S``, in one pass over the data, which are read as far as needed.

    Args:
        features: Says how φ is computed, and of which data.
        watch: Says when to stop; S is then that of the smallest validation loss.

    Cost:
        A forward and c backward passes, or two forward passes a feature, for each example; the sum in float64.
    """
    k, likelihood = features.changes.shape[1], features.model.likelihood
    total = torch.zeros(k, k, dtype=torch.float64, device=features.changes.device)
    tally, examples = Tally(likelihood), 0
    size = features.chunk if watch is None else min(features.chunk, watch.every)
    for forward, f, y in visit(features.model, size):
        values = features.of_pass(forward).values
        curved = likelihood.hessian(f.double(), y) @ values
        total += values.flatten(0, -2).mT @ curved.flatten(0, -2)
        tally.add(forward, f, y)
        examples += len(f)
        if watch is not None and watch.due(examples):
            watch.measure(total, tally.totals())
            if watch.over:
                break
    if watch is None:
        return Accumulated((total + total.mT) / 2, tally.totals(), False)
    if watch.trace[-1][0] < examples:
        watch.measure(total, tally.totals())
    best = watch.best
    return Accumulated((best.curvature + best.curvature.mT) / 2, best.totals, best.totals.examples < examples)


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
