"""What ways of choosing share: the evidence they climb, the trace they leave, the posterior they return."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal, TypeAlias, TypeGuard, TypeVar, cast, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ConfigError, ConvergenceWarning, NumericalError, UnsupportedError, check_option, warn
from lapwing.linalg.operators.eigenbasis import decompose
from lapwing.linear.evidence import LogEvidence
from lapwing.linear.log_det_ratio import Spectrum
from lapwing.posteriors import ExactPosterior, Posterior, SolvedWeights, Step, WeightPosterior
from lapwing.posteriors.draws import SampledPosterior
from lapwing.tuning.solved import Solved

P = TypeVar("P", bound=Posterior)
Q = TypeVar("Q", bound="Posterior | Solved")

BOUNDS = (1e-10, 1e12)
"""Precisions considered."""

SEVERAL = 3.0
"""A noise so many times the residuals at the trained weights is more than the data say."""

EDGE = 1.01
"""A precision within this factor of an end of its range is at it."""

SLOWEST = 0.95
"""Largest factor by which moves are taken to shrink from step to step."""

At: TypeAlias = Literal["weights", "mode"]
"""Where the evidence is taken: at the trained weights, or at the mode of the linear model around them."""


def solves(posterior: Posterior | Solved) -> TypeGuard[Solved]:
    """Whether a posterior solves with its precision, by products alone; all that are no network's do."""
    return isinstance(posterior, SolvedWeights) or not isinstance(posterior, Posterior)


def evidence_at(posterior: Posterior, at: At) -> LogEvidence:
    """The evidence at the trained weights, or at the mode of the linear model around them.

    Raises:
        NumericalError: If the curvature is indefinite.
        UnsupportedError: If the evidence is not exact, or the mode not known in closed form.
    """
    check_option("at", at, get_args(At))
    if not isinstance(posterior, ExactPosterior):
        raise UnsupportedError(
            "a posterior whose evidence is exact",
            f"a {type(posterior).__name__}, whose evidence is an estimate",
            "EM(), or tuning a LowRank(...) or KFAC() posterior, and its tuned prior and likelihood for this structure",
        )
    evidence = posterior.evidence
    check_definite(evidence)
    if at == "weights":
        return evidence
    shift = posterior.shift if isinstance(posterior, WeightPosterior) else None
    if shift is None:
        raise UnsupportedError(
            "a Gaussian likelihood and a posterior over the weights for at='mode'",
            f"{type(posterior.likelihood).__name__} and {type(posterior).__name__}",
            "at='weights'",
        )
    return replace(evidence, shift=shift)


def at_mode(evidence: LogEvidence, square_norms: Float[Tensor, " g"], *, nll: float, misfit: float) -> LogEvidence:
    """The evidence with its fit to the data taken at a mode w* of the tangent model, found by a search.

        log p(y | w*) - ½ Σ_g α_g |w*_g|² - ½ log det(I + s A⁻¹ G)                  (Antorán 2024, section 6.1)

    As a function of (α, s), w* kept, it is a lower bound on the evidence ``log N(y; f, J A⁻¹ Jᵀ + B⁻¹ / s)`` of the
    tangent model for Gaussian noise, and equal to it at the prior and the noise whose mode w* is. For other likelihoods
    the same holds of Laplace's approximation with G held fixed.

    Args:
        evidence: The evidence at any weights.
        square_norms: ``|w*_g|²`` of each group, every weight times its precision relative to the group's.
        nll: Negative log likelihood of all targets at the tangent model's outputs for w*, at s = 1, nats.
        misfit: For Gaussian noise the weighted squared error there, at s = 1; 0 for others.
    """
    return replace(evidence, square_norms=square_norms.to(evidence.sizes), nll=nll, misfit=misfit, shift=None)


def check_definite(evidence: LogEvidence) -> None:
    """Refuse an indefinite curvature: its evidence has poles where it and a weak prior cancel, and no maximum.

    Raises:
        NumericalError: If it is.
    """
    held = evidence.complexity
    if isinstance(held, Spectrum):
        values = held.eigenvalues
    elif held.curvature is not None:
        values = decompose(held.curvature).values
    else:
        return
    if bool((values < 0).any()):
        raise NumericalError(
            "a curvature without negative eigenvalues, to tune by its evidence",
            f"eigenvalues from {float(values.min()):.3g} to {float(values.max()):.3g}",
            "curvature=GGN(), or Hessian(damping=...)",
        )


def tunes_noise(posterior: Posterior | Solved, wanted: bool) -> bool:
    """Whether there is a noise precision to choose, and it is wanted.

    Raises:
        UnsupportedError: If it is, but the curvature does not follow the noise.
    """
    if not wanted or posterior.fitted.noise is None:
        return False
    if isinstance(posterior, Posterior):
        posterior.check_noise_free()
    return True


def fixed_point(
    gamma: Float[Tensor, " g"],
    norms: Float[Tensor, " g"],
    misfit: Float[Tensor, ""],
    scale: Float[Tensor, ""],
    observations: float,
    noisy: bool,
) -> tuple[Float[Tensor, " g"], Float[Tensor, ""]]:
    """MacKay's step: ``α_g = γ_g / |w_g|²``, ``s = (N - γ) / misfit`` (MacKay 1992, equations 4.9 and 4.10).

    Where γ is more than half of the N observations that s overshoots, and turns negative beyond N; the step of
    expectation maximisation, ``s = N / (misfit + γ / s₀)``, takes its place: the fixed point is the same.

    Args:
        gamma: Effective dimension ``γ_g`` of each group, exact or an estimate.
        norms: ``|w_g|²``.
        misfit: Weighted squared error at s = 1.
        scale: s₀.
        observations: Scalar observations N.
        noisy: Whether the noise may change.
    """
    least, total = torch.finfo(torch.float64).tiny, gamma.sum()
    alpha = (gamma / norms.clamp_min(least)).clamp(*BOUNDS)
    if not noisy:
        return alpha, scale
    if total > 0.5 * observations:
        return alpha, (observations / (misfit + total / scale)).clamp(*BOUNDS)
    return alpha, ((observations - total) / misfit.clamp_min(least)).clamp(*BOUNDS)


def distance(moves: Float[Tensor, " m"], before: Float[Tensor, " m"] | None) -> Float[Tensor, " m"]:
    """How far the fixed point is, if moves go on shrinking by the factor ρ by which they last did.

    ``|move| / (1 - ρ)`` where a precision goes on in the same direction, and ``|move| / (1 + ρ)`` where it turned back:
    the fixed point then lies between the two.

    Args:
        moves: The moves of this step.
        before: Those of the step before, where there was one; ρ is the ratio of the largest.

    Example:
        >>> distance(torch.tensor([0.5, 0.5]), torch.tensor([1.0, -1.0])).round(decimals=2)
        tensor([1.0000, 0.3300])
    """
    sizes = moves.abs()
    if before is None:
        return sizes
    shrunk = float(sizes.max() / before.abs().max())
    back = (moves * before < 0) & (shrunk < SLOWEST)
    return sizes / (1.0 - min(shrunk, SLOWEST) * torch.where(back, -1.0, 1.0).to(sizes))


def measured(posterior: Posterior, precisions: Tensor, scale: Tensor) -> Step:
    """One step of a trace; evidence and effective dimension where they have a closed form.

    Not of very many outputs, whose tens of millions of terms would take longer than a search over held-out data.
    """
    if posterior.wide or not isinstance(posterior, ExactPosterior):
        return step_of(posterior, None, precisions, scale, None)
    with torch.no_grad():
        log_marginal = float(posterior.evidence.log_marginal(precisions, scale))
    gamma = float(posterior.evidence.effective_dimensions(precisions, scale).sum())
    known = log_marginal if math.isfinite(log_marginal) else None
    return step_of(posterior, known, precisions, scale, gamma)


def step_of(
    posterior: Posterior | Solved, log_marginal: float | None, precisions: Tensor, scale: Tensor, gamma: float | None
) -> Step:
    """One step of a trace, its numbers at hand."""
    noise = posterior.fitted.scaled(float(scale)).noise_precision
    return Step(log_marginal, tuple(precisions.tolist()), noise, gamma)


def chosen(
    posterior: Q,
    precisions: Float[Tensor, " g"],
    scale: Tensor,
    steps: tuple[Step, ...],
    draws: Float[Tensor, "d k"] | None = None,
) -> Q:
    """The posterior with these values.

    Args:
        posterior: The posterior before.
        precisions: Prior precision of each group.
        scale: Relative noise precision.
        steps: What led to them.
        draws: Where draws of a sampled posterior are now, nearly, in units in which the prior is standard normal.

    Raises:
        ConfigError: If they are not positive and finite: the evidence has no maximum.
    """
    values = torch.cat([precisions.detach(), scale.detach().view(1)]).cpu()
    if not bool((torch.isfinite(values) & (values > 0)).all()):
        raise ConfigError(
            "hyper-parameters that are positive and finite", f"{values.tolist()}", "Validation(data), or another prior"
        )
    prior = posterior.prior.with_precisions(values[:-1])
    tuned = posterior.with_choices(prior, posterior.fitted.scaled(float(values[-1])), steps)
    if draws is None or not isinstance(tuned, SampledPosterior):
        return cast(Q, tuned)
    return cast(Q, tuned.begun(draws))


def ended(
    posterior: Q,
    precisions: Float[Tensor, " g"],
    scale: Float[Tensor, ""],
    steps: tuple[Step, ...],
    draws: Float[Tensor, "d k"] | None = None,
    *,
    noisy: bool,
) -> Q:
    """The posterior with the values at which a climb ended, as ``chosen``; warned of where they are no answer.

    Args:
        posterior: The posterior before.
        precisions: Prior precision of each group.
        scale: Relative noise precision.
        steps: What led to them.
        draws: See ``chosen``.
        noisy: Whether the noise was chosen.

    Raises:
        ConfigError: If they are not positive and finite: the evidence has no maximum.

    Warns:
        ConvergenceWarning: If a precision is at an end of ``BOUNDS``, or the noise is several times the residuals at
            the trained weights.
    """
    totals, ends = posterior.totals, [value for value in precisions.tolist() if at_end(value)]
    if noisy and at_end(float(scale)):
        warn(
            f"tuning took the noise precision to {float(scale):.0e} times what it was, the end of its range: what it "
            "judged by fits the training data exactly, or not at all. Try training the network to convergence, or "
            'EvidenceGradient(noise="residuals"), which takes the noise from the network\'s own residuals',
            ConvergenceWarning,
        )
        return chosen(posterior, precisions, scale, steps, draws)
    if ends:
        meaning = "no uncertainty of those weights" if ends[0] > 1 else "no prior at all"
        warn(
            f"tuning took {len(ends)} of {len(precisions)} prior precisions to {ends[0]:.0e}, an end of its range: it "
            f"asks for {meaning}, which is no answer. Try Isotropic() in place of a prior of several precisions, "
            "another structure, or Validation(data)",
            ConvergenceWarning,
        )
    times = (totals.observations / (float(scale) * totals.misfit)) ** 0.5 if noisy and totals.misfit > 0 else 0.0
    if times > SEVERAL:
        warn(
            f"the tuned noise is {times:.1f} times the residuals at the trained weights: this curvature counts more "
            f"directions as determined than {totals.observations:g} observations can determine. Try "
            'EvidenceGradient(noise="residuals"), or structure=Full() or weights=LastLayer()',
            ConvergenceWarning,
        )
    return chosen(posterior, precisions, scale, steps, draws)


def at_end(value: float) -> bool:
    """Whether a precision is at an end of the range considered.

    Example:
        >>> at_end(1e12), at_end(3.0)
        (True, False)
    """
    return not EDGE * BOUNDS[0] < value < BOUNDS[1] / EDGE
