"""The log density a prediction gave to what came: of each target, and of all targets of a batch at once."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import NumericalError, check_count
from lapwing.ground.results import Estimate
from lapwing.likelihoods import IGNORED, Gaussian, HeteroscedasticGaussian, Likelihood
from lapwing.predictive.distributions import Classification, Counts, MultiLabel, Regression
from lapwing.predictive.links import SAMPLES
from lapwing.predictive.outputs import Draws, JointMoments, Moments
from lapwing.predictive.predict import Link, Predictive, predictive
from lapwing.predictive.wide import WideMoments

COUNT_DRAWS = 512
"""Draws of the rate behind the density of a count."""


def log_predictive(
    predictive: Predictive, targets: Tensor, *, generator: torch.Generator | None = None
) -> Float[Tensor, " m"]:
    """Log predictive density log p(y) of every target that is not ignored, nats, summed over the outputs of a position.

    Args:
        predictive: The distribution.
        targets: Canonical targets.
        generator: Source of randomness for counts, whose density is averaged over draws of the rate.

    Returns:
        One number a position that has a target, in order.

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
            return probs.log()[kept].gather(-1, targets[kept].unsqueeze(-1)).squeeze(-1)
        case MultiLabel():
            tiny = torch.finfo(predictive.probs.dtype).tiny
            right = torch.where(targets > 0.5, predictive.probs, 1 - predictive.probs)
            return right.clamp_min(tiny).log().sum(-1).flatten()
        case Regression():
            variance = predictive.variance.double()
            squares = (targets.double() - predictive.mean.double()).square()
            return -0.5 * (squares / variance + (2 * math.pi * variance).log()).sum(-1).flatten()
        case Counts():
            rates = predictive.log_rates.sample(COUNT_DRAWS, generator=generator)
            logs = targets * rates - rates.exp() - torch.lgamma(targets + 1)
            return torch.logsumexp(logs.sum(-1), dim=0).flatten() - math.log(COUNT_DRAWS)


def canonical_targets(likelihood: Likelihood, predictive: Predictive, targets: Tensor) -> Tensor:
    """Targets of a loader in the shape of a predictive distribution.

    Raises:
        ShapeError: If the shape does not fit.
        DataError: If the type does not fit the likelihood.
    """
    match predictive:
        case Classification(known) | MultiLabel(known) | Regression(known) | Counts(known):
            outputs = known.mean
    if isinstance(likelihood, HeteroscedasticGaussian):
        outputs = torch.cat([outputs, outputs], dim=-1)
    targets = likelihood.canonical_targets(outputs, targets.to(outputs.device))
    likelihood.check(outputs, targets)
    return targets


def held_out_losses(
    likelihood: Likelihood,
    outputs: Moments | WideMoments,
    targets: Tensor,
    link: Link,
    *,
    temperature: float = 1.0,
    samples: int = SAMPLES,
) -> Float[Tensor, " m"]:
    """Negative log predictive density of each held-out target, nats; one infinite number where expected rates overflow.

    Draws are the same at every call, so that losses can be compared.

    Args:
        likelihood: The likelihood.
        outputs: Outputs at the held-out inputs.
        targets: Targets as a loader has them.
        link: As in ``predict``.
        temperature: As in ``predictive``.
        samples: Draws for ``link="mc"``.
    """
    draws, counts = (torch.Generator().manual_seed(0) for _ in range(2))
    try:
        found = predictive(likelihood, outputs, link, temperature=temperature, samples=samples, generator=draws)
    except NumericalError:
        return torch.full((1,), math.inf, device=outputs.mean.device)
    return -log_predictive(found, canonical_targets(likelihood, found, targets), generator=counts)


def log_joint(
    likelihood: Likelihood,
    outputs: JointMoments | Draws,
    targets: Tensor,
    *,
    samples: int = SAMPLES,
    generator: torch.Generator | None = None,
) -> Estimate:
    """Joint predictive log density log ∫ Π_n p(y_n | f_n) p(f) df of a batch, in nats.

    Exact for Gaussian noise and Gaussian outputs. Otherwise log (1/S) Σ_s exp Σ_n log p(y_n | f_n^s) over
    draws of f, biased low by about half its squared standard error (delta method): trust it while that is
    small.

    Args:
        likelihood: p(y | f).
        outputs: What is known of f over the whole batch.
        targets: Canonical targets.
        samples: Draws of f where there is no closed form; ``Draws`` are used as they are.
        generator: Source of randomness; ``None`` draws from PyTorch's global one.

    Returns:
        The log density with its standard error (0 where exact).

    Raises:
        ConfigError: If there are not at least two samples.
        NumericalError: If the covariance is not positive semi-definite.

    Cost: O((n c)³) once; ``samples`` draws of the batch in memory.

    Example:
        >>> outputs = JointMoments(torch.zeros(1, 1), torch.ones(1, 1, 1, 1))
        >>> log_joint(Gaussian(), outputs, torch.zeros(1, 1)).value == -0.5 * math.log(4 * math.pi)
        True
    """
    if isinstance(likelihood, Gaussian) and isinstance(outputs, JointMoments):
        return Estimate(_gaussian_log_joint(likelihood, outputs, targets), 0.0, 0)
    check_count("samples", samples, 2, usual=SAMPLES)
    values = outputs.values if isinstance(outputs, Draws) else outputs.sample(samples, generator=generator)
    losses = likelihood.unweighted.nll(values, targets.expand(values.shape[0], *targets.shape))
    logs = -losses.reshape(values.shape[0], -1).sum(-1, dtype=torch.float64)
    count = logs.shape[0]
    weights = torch.softmax(logs, 0)
    stderr = float(weights.std() * count**0.5) if count > 1 else math.inf
    return Estimate(float(torch.logsumexp(logs, 0)) - math.log(count), stderr, count)


def _gaussian_log_joint(likelihood: Gaussian, outputs: JointMoments, targets: Tensor) -> float:
    size = outputs.mean.numel()
    noise = (1 / likelihood.precisions(outputs.mean.double())).expand(outputs.mean.shape).reshape(-1)
    total = outputs.covariance.double().reshape(size, size) + torch.diag(noise)
    factor, failed = torch.linalg.cholesky_ex(total)
    if int(failed):
        raise NumericalError(
            "a positive semi-definite joint covariance",
            f"one whose sum with the noise fails to factorise at row {int(failed)} of {size}",
            "float64, or a larger prior precision",
        )
    density = torch.distributions.MultivariateNormal(outputs.mean.double().reshape(-1), scale_tril=factor)
    return float(density.log_prob(targets.double().reshape(-1)))
