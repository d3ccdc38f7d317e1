"""The log density that outputs gave to what came: of each held-out target, and of all targets of a batch at once."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import NumericalError, check_count
from lapwing.ground.precision import wide
from lapwing.ground.results import Estimate
from lapwing.likelihoods.base import Likelihood
from lapwing.moments import Draws, JointMoments, Moments, WideMoments
from lapwing.predictive.links import SAMPLES, Link


def held_out_losses(
    likelihood: Likelihood,
    outputs: Moments | WideMoments,
    targets: Tensor,
    link: Link,
    *,
    temperature: float = 1.0,
    samples: int = SAMPLES,
    either: bool = False,
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
        either: Whether every example has two targets, ``[m, 2, ...]``, of which one is as likely as the other; its loss
            is the mean of theirs.
    """
    for_outputs = torch.Generator().manual_seed(0)
    try:
        found = likelihood.predictive(outputs, link, temperature=temperature, samples=samples, generator=for_outputs)
    except NumericalError:
        return torch.full((1,), math.inf, device=outputs.mean.device)

    def losses_at(ones: Tensor) -> Tensor:
        for_targets = torch.Generator().manual_seed(0)
        return -found.log_prob(likelihood.targets_of(found, ones), generator=for_targets)

    if not either:
        return losses_at(targets)
    return (losses_at(targets[:, 0]) + losses_at(targets[:, 1])) / 2


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
        >>> from lapwing.likelihoods import Gaussian
        >>> outputs = JointMoments(torch.zeros(1, 1), torch.ones(1, 1, 1, 1))
        >>> log_joint(Gaussian(), outputs, torch.zeros(1, 1)).value == -0.5 * math.log(4 * math.pi)
        True
    """
    exact = None if outputs.sampled else likelihood.exact_log_joint(outputs, targets)
    if exact is not None:
        return Estimate(exact, 0.0, 0)
    check_count("samples", samples, 2, usual=SAMPLES)
    values = outputs.draws(samples, generator=generator)
    losses = likelihood.unweighted.nll(values, targets.expand(values.shape[0], *targets.shape))
    logs = -wide(losses).reshape(values.shape[0], -1).sum(-1)
    count = logs.shape[0]
    weights = torch.softmax(logs, 0)
    stderr = float(weights.std() * count**0.5) if count > 1 else math.inf
    return Estimate(float(torch.logsumexp(logs, 0)) - math.log(count), stderr, count)
