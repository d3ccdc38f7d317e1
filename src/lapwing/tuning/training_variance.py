"""No more is unknown of outputs at training inputs than their noise: a bound that curvatures of few directions break.

For the exact curvature ``G = Σ_n J_nᵀ B_n J_n`` of N observations

    Σ_n tr(B_n J_n Λ⁻¹ J_nᵀ) = tr(Λ⁻¹ G) = γ ≤ N

so that on average an output varies no more than its observation does. A structure that keeps the prior in the
directions it leaves out has larger variances, at training inputs too, and an evidence that does not know of them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import torch

from lapwing.ground.data.sources import Batch
from lapwing.ground.precision import wide
from lapwing.moments import Moments
from lapwing.posteriors import Posterior
from lapwing.predictive import WideMoments
from lapwing.tuning.held_out.examples import joined, selected
from lapwing.tuning.held_out.outputs import HeldOut, held_out_outputs
from lapwing.tuning.hyperparameters import Hyperparameters
from lapwing.tuning.method import P
from lapwing.tuning.result import measured_step, with_hyperparameters

logger = logging.getLogger(__name__)

EXAMPLES = 128
"""Training examples that are looked at, evenly over all."""

FACTORS = (1.0, 1e8)
"""Factors of the prior precisions that are tried."""

HALVINGS = 20
"""Of the range of log factors: to a ten-thousandth of a decade."""


def within_noise(posterior: P) -> P:
    """The posterior, or one of a stronger prior under which outputs at training inputs vary no more than their noise.

        1/N Σ_n tr(B_n J_n Λ⁻¹ J_nᵀ) ≤ 1

    over N observations, of training examples spread evenly over all. Returned as they are: posteriors of the whole
    curvature, which keep to it, and those that leave out what blocks of weights have in common, whose evidence counts
    that as determined.

    Args:
        posterior: A posterior tuned by its evidence.

    Cost:
        A pass over the training data without the network; a prediction of at most 128 examples. Where the bound is
        broken, their outputs under every prior: about another.
    """
    if posterior.data is None or posterior.wide or not posterior.exact or posterior.leaves_out_correlations:
        return posterior
    batches = training_examples(posterior, EXAMPLES)
    if not batches or posterior.by_draws(batches[0].inputs):
        return posterior
    here = [posterior.outputs_each(batch.inputs, [posterior])[0] for batch in batches]
    before = mean_information(posterior, here)
    if before <= 1.0:
        return posterior
    data = held_out_outputs(posterior, batches, FACTORS)
    log_factor = least_within(data)
    there = Hyperparameters(posterior.prior_precisions * math.exp(log_factor), data.hyperparameters_at(0.0).scale)
    logger.info(
        "at training inputs outputs varied %.3g times as much as their noise, more than observations leave open, since "
        "this curvature leaves directions out: the prior precision is %.3g times that of the evidence",
        before,
        math.exp(log_factor),
    )
    return with_hyperparameters(posterior, there, (measured_step(posterior, there),))


def training_examples(posterior: Posterior, examples: int) -> list[Batch]:
    """Training examples of this process, evenly over all."""
    assert posterior.data is not None
    total = posterior.totals.examples
    index = torch.linspace(0, total - 1, min(examples, total), dtype=torch.float64).round().long()
    return joined(list(selected(posterior.data, index)))


def mean_information(posterior: Posterior, moments: Sequence[Moments | WideMoments]) -> float:
    """``tr(B cov f)`` over the outputs of an observation, a mean over all that are looked at, by all processes.

    Args:
        posterior: Has the likelihood and its training data.
        moments: Outputs.
    """
    total = 0.0
    observations = 0.0
    for part in moments:
        mean = wide(part.mean)
        product = posterior.likelihood.hessian(mean) * wide(part.covariance)  # tr(B C) of symmetric B and C
        total += float(product.sum())
        observations += mean.numel()
    sums = posterior.model.data.added(torch.tensor([total, observations], dtype=torch.float64))
    return float(sums[0] / sums[1])


def least_within(data: HeldOut[P]) -> float:
    """Logarithm of the least factor at which the mean is 1 at most, by halving; of the largest where there is none."""
    low = data.log_factors[-1]
    high = data.log_factors[0]
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if mean_information(data.posterior, data.moments(middle)) > 1.0:
            low = middle
        else:
            high = middle
    return high
