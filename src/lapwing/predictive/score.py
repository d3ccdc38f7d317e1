"""The log density a predictive distribution gave to what came."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.likelihoods import HeteroscedasticGaussian, Likelihood
from lapwing.likelihoods.targets import IGNORED
from lapwing.predictive.classification import Classification, MultiLabel
from lapwing.predictive.predict import Predictive
from lapwing.predictive.regression import Counts, Regression

COUNT_DRAWS = 512


def log_predictive(
    predictive: Predictive, targets: Tensor, *, generator: torch.Generator | None = None
) -> Float[Tensor, "*batch"]:
    """Log predictive density log p(y) at each position, nats, summed over the outputs of a position.

    Args:
        predictive: The distribution.
        targets: Canonical targets.
        generator: Source of randomness for counts, whose density is averaged over draws of the rate.

    Returns:
        One number a position; 0 where the target is ignored.

    Example:
        >>> from lapwing.likelihoods import Categorical
        >>> from lapwing.predictive import Moments, predictive
        >>> log_predictive(predictive(Categorical(), Moments.certain(torch.zeros(1, 2))), torch.tensor([0]))
        tensor([-0.6931])
    """
    match predictive:
        case Classification():
            kept = targets != IGNORED
            probs = predictive.probs.clamp_min(torch.finfo(predictive.probs.dtype).tiny)
            return probs.log().gather(-1, targets.where(kept, 0).unsqueeze(-1)).squeeze(-1).where(kept, 0.0)
        case MultiLabel():
            tiny = torch.finfo(predictive.probs.dtype).tiny
            right = torch.where(targets > 0.5, predictive.probs, 1 - predictive.probs)
            return right.clamp_min(tiny).log().sum(-1)
        case Regression():
            variance = predictive.variance
            return -0.5 * ((targets - predictive.mean).square() / variance + (2 * math.pi * variance).log()).sum(-1)
        case Counts():
            rates = predictive.log_rates.sample(COUNT_DRAWS, generator=generator)
            logs = targets * rates - rates.exp() - torch.lgamma(targets + 1)
            return torch.logsumexp(logs.sum(-1), dim=0) - math.log(COUNT_DRAWS)


def canonical_targets(likelihood: Likelihood, predictive: Predictive, targets: Tensor) -> Tensor:
    """Targets of a loader in the shape of a predictive distribution.

    Raises:
        ShapeError: If the shape does not fit.
        DataError: If the type does not fit the likelihood.
    """
    match predictive:
        case Classification() | MultiLabel():
            outputs = predictive.logits.mean
        case Regression():
            outputs = predictive.mean
        case Counts():
            outputs = predictive.log_rates.mean
    if isinstance(likelihood, HeteroscedasticGaussian):
        outputs = torch.cat([outputs, outputs], dim=-1)
    targets = likelihood.canonical_targets(outputs, targets.to(outputs.device))
    likelihood.check(outputs, targets)
    return targets
