"""What approximate curvatures say of outputs at training inputs, and what it mends in prior and noise.

For the exact curvature ``G = Σ_n J_nᵀ B_n J_n`` of N observations

    Σ_n tr(B_n J_n Λ⁻¹ J_nᵀ) = tr(Λ⁻¹ G) = γ ≤ N

so that on average an output varies no more than its observation does. A structure that keeps the prior in the
directions it leaves out has larger variances, at training inputs too, and an evidence that does not know of them: it
gets a stronger prior, whether the noise has one size or depends on the input.

One of layers that have nothing in common counts more directions than there are, so that its evidence finds too much
noise, while the residuals alone are too small where the network has fitted them: it gets the noise of residuals over
what fitting left to them. The variances of independent weights are so wide that their intervals need no more.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data.sources import Batch
from lapwing.ground.errors import ConvergenceWarning, DataWarning, UnsupportedError, warn
from lapwing.ground.precision import wide
from lapwing.linalg import Diagonal, KroneckerChain, LowRank
from lapwing.moments import Moments
from lapwing.posteriors import Posterior
from lapwing.predictive import WideMoments
from lapwing.tuning.gradient import EvidenceGradient
from lapwing.tuning.held_out.examples import joined, selected
from lapwing.tuning.held_out.outputs import HeldOut, held_out_outputs
from lapwing.tuning.hyperparameters import Hyperparameters
from lapwing.tuning.method import P
from lapwing.tuning.noise import output_noises
from lapwing.tuning.result import measured_step, with_hyperparameters

logger = logging.getLogger(__name__)

EXAMPLES = 128
"""Training examples that are looked at, evenly over all."""

FACTORS = (1.0, 1e8)
"""Factors of the prior precisions that are tried."""

ROUNDING = 1.1
"""Times that outputs may vary as much as their noise where that may be rounding: in float32, under the whole curvature
and a prior so weak that each output is as its observation."""

LOST = 10.0
"""Times that outputs at training inputs may vary as much as their noise, before the noise is said to be none."""

HALVINGS = 20
"""Of the range of log factors: to a ten-thousandth of a decade."""


def mended_by_training_variance(posterior: P, progress: bool | None) -> P:
    """A posterior tuned by its evidence or its residuals, with the prior or the noise that its structure needs.

    Args:
        posterior: The posterior.
        progress: Whether to show progress bars; ``None`` for after two seconds, in a terminal or notebook.

    Cost:
        A pass over the training data without the network, and a prediction of at most 128 examples; for ``KFAC`` of
        several outputs a fit, for another prior about another prediction.

    Warns:
        ConvergenceWarning: If no prior that is tried is strong enough, or after Ctrl-C, which keeps the posterior.
        DataWarning: If the posterior may need another prior or noise, but has no training data to tell.
    """
    if posterior.wide or not posterior.exact:
        return posterior
    if posterior.data is None:
        warn_of_no_data(posterior)
        return posterior
    try:
        return _mended(posterior, progress)
    except KeyboardInterrupt:
        said = "interrupted: prior and noise are those of the evidence, whatever outputs at training inputs vary"
        warn(said, ConvergenceWarning)
        return posterior


def _mended(posterior: P, progress: bool | None) -> P:
    """The same of a posterior with its training data."""
    batches = training_examples(posterior, EXAMPLES)
    if not batches or posterior.by_draws(batches[0].inputs):
        return posterior
    if not posterior.leaves_out_correlations:
        return within_noise(posterior, batches)
    if posterior.likelihood.noise is None or isinstance(posterior.precision_operator, Diagonal):
        return posterior
    return beyond_residuals(posterior, batches, progress)


def warn_of_no_data(posterior: Posterior) -> None:
    """Warn of prior and noise that stay as they are for want of training inputs; the whole curvature needs none.

    Nor does a covariance that has no inverse: it leaves the prior no variance outside of its span.
    """
    of_blocks = posterior.leaves_out_correlations and not isinstance(posterior.precision_operator, Diagonal)
    if not leaves_out_directions(posterior) and (not of_blocks or posterior.likelihood.noise is None):
        return
    warn(
        "without training data the prior and the noise are those of the evidence and the residuals alone, though this "
        "curvature leaves out directions of the weights, or what layers have in common: intervals may be far too wide, "
        "or too narrow. Try load(path, model, data) with the training data, or tune(posterior, held_out)",
        DataWarning,
    )


def leaves_out_directions(posterior: Posterior) -> bool:
    """Whether a curvature leaves the prior its variance in directions that the data determine."""
    try:
        operator = posterior.precision_operator
    except UnsupportedError:
        return False
    return isinstance(operator, KroneckerChain | LowRank)


def warn_of_lost_noise(posterior: Posterior) -> None:
    """Warn where the prior's variance in directions that a structure leaves out was taken for the noise of targets.

    By the bound above training targets leave outputs no more than their noise. Where the curvature leaves directions
    out, held-out residuals are as well explained by the prior's variance there as by noise: nothing holds the noise
    then, and the precision of the prior over that of the noise falls as far as it is let.

    Cost:
        A prediction of at most 128 training examples, where the structure leaves directions out.
    """
    if posterior.likelihood.noise is None or posterior.data is None or posterior.wide or not posterior.exact:
        return
    if not leaves_out_directions(posterior):
        return
    batches = training_examples(posterior, EXAMPLES)
    if not batches or posterior.by_draws(batches[0].inputs):
        return
    times = float(information(posterior, moments_of(posterior, batches)).max())
    if times > LOST:
        warn(
            f"at training inputs outputs vary {times:.3g} times as much as their noise, where data leave them as much "
            "as that at most: this curvature leaves directions to the prior, whose variance was taken for the noise. "
            f"The noise of {posterior.fitted!r} is no estimate, and inputs that move those directions little look "
            "almost certain. Try more directions, rank=, Full() or KFAC(), or tune(posterior) without held-out data",
            ConvergenceWarning,
        )


def beyond_residuals(posterior: P, batches: Sequence[Batch], progress: bool | None) -> P:
    """The posterior with a noise as of residuals that fitting made smaller, and the prior of largest evidence there.

        ρ = (N - γ) / Σ (y - f)²  with  γ = N r / (1 + r),  r = 1/N Σ_n ρ₀ J_n Λ⁻¹ J_nᵀ

    MacKay's noise precision (1992, equation 4.10), for each output, with the leverage r / (1 + r) that an observation
    has on its own output whose variance without it is r over the noise; ρ₀ is the noise of the residuals.

    Args:
        posterior: The posterior at the noise of its residuals.
        batches: Some training examples.
        progress: Whether to show progress bars.
    """
    likelihood = posterior.likelihood
    added = information(posterior, moments_of(posterior, batches))
    own = output_noises(posterior)
    if own is None:
        scale = posterior.noise_scale / (1.0 + float(added.mean()))
        precisions = posterior.prior_precisions
        found = with_hyperparameters(posterior, Hyperparameters(precisions, precisions.new_tensor(scale)), ())
    else:
        found = posterior.refitted(likelihood.with_own_noises(own / (1.0 + added.to(own))))
    return EvidenceGradient(noise=False).tune(found, progress)


def within_noise(posterior: P, batches: Sequence[Batch]) -> P:
    """The posterior, or one of a stronger prior under which outputs at training inputs vary no more than their noise.

        1/N Σ_n tr(B_n J_n Λ⁻¹ J_nᵀ) ≤ 1

    over N observations. Posteriors of the whole curvature keep to it by themselves.

    Args:
        posterior: A posterior tuned by its evidence.
        batches: Some training examples.

    Warns:
        ConvergenceWarning: If they vary more under the strongest prior that is tried, too.
    """
    before = float(information(posterior, moments_of(posterior, batches)).mean())
    if before <= ROUNDING:
        return posterior
    data = held_out_outputs(posterior, batches, FACTORS)
    log_factor = least_within(data)
    if log_factor == data.log_factors[0]:
        after = float(information(posterior, data.moments(log_factor)).mean())
        if after > 1.0:
            warn(
                f"outputs at training inputs vary {after:.3g} times as much as their noise even where prior precisions "
                f"are {FACTORS[1]:.0e} times those of the evidence, the most that is tried: intervals are too wide. "
                "Try Isotropic() in place of a prior of several precisions, more directions, rank=, or held-out data",
                ConvergenceWarning,
            )
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


def moments_of(posterior: Posterior, batches: Sequence[Batch]) -> list[Moments | WideMoments]:
    """Outputs of a posterior at the inputs of some batches."""
    return [posterior.outputs_each(batch.inputs, [posterior])[0] for batch in batches]


def information(posterior: Posterior, moments: Sequence[Moments | WideMoments]) -> Float[Tensor, " c"]:
    """``(B cov f)_kk`` of each output, a mean over all observations that are looked at, by all processes.

    Args:
        posterior: Has the likelihood and its training data.
        moments: Outputs.
    """
    sums = list[Tensor]()
    observations = 0
    for part in moments:
        product = posterior.likelihood.hessian(wide(part.mean)) * wide(part.covariance)
        each = product.sum(-1).flatten(0, -2)
        sums.append(each.sum(0))
        observations += len(each)
    total = torch.stack(sums).sum(0).cpu()
    shared = posterior.model.data.added(torch.cat([total, total.new_tensor([float(observations)])]))
    return shared[:-1] / shared[-1]


def least_within(data: HeldOut[P]) -> float:
    """Logarithm of the least factor at which the mean is 1 at most, by halving; of the largest where there is none."""
    low = data.log_factors[-1]
    high = data.log_factors[0]
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if float(information(data.posterior, data.moments(middle)).mean()) > 1.0:
            low = middle
        else:
            high = middle
    return high
