"""What ways of choosing share: the evidence they climb, the trace they leave, the posterior they return."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypeAlias, TypeVar, cast, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ConfigError, NumericalError, UnsupportedError, check_option
from lapwing.linalg.eigenbasis import Eigenbasis
from lapwing.linear.evidence import Evidence, Matrix, Spectrum
from lapwing.posteriors import Posterior, Step, WeightPosterior
from lapwing.posteriors.draws import SampledPosterior
from lapwing.posteriors.exact import with_evidence

P = TypeVar("P", bound=Posterior)

At: TypeAlias = Literal["weights", "mode"]
"""Where the evidence is taken: at the trained weights, or at the mode of the linear model around them."""


def evidence_at(posterior: Posterior, at: At) -> Evidence:
    """The evidence at the trained weights, or at the mode of the linear model around them.

    Raises:
        NumericalError: If the curvature is indefinite.
        UnsupportedError: If the mode is not known in closed form.
    """
    check_option("at", at, get_args(At))
    exact = with_evidence(posterior)
    check_definite(exact.evidence)
    if at == "weights":
        return exact.evidence
    shift = posterior.shift if isinstance(posterior, WeightPosterior) else None
    if shift is None:
        raise UnsupportedError(
            "a Gaussian likelihood and a posterior over the weights for at='mode'",
            f"{type(posterior.likelihood).__name__} and {type(posterior).__name__}",
            "at='weights'",
        )
    return replace(exact.evidence, shift=shift)


def check_definite(evidence: Evidence) -> None:
    """Refuse an indefinite curvature: its evidence has poles where it and a weak prior cancel, and no maximum.

    Raises:
        NumericalError: If it is.
    """
    held = evidence.complexity
    if not isinstance(held, Spectrum | Matrix):
        return
    values = held.eigenvalues if isinstance(held, Spectrum) else Eigenbasis(held.curvature).values
    if bool((values < 0).any()):
        raise NumericalError(
            "a curvature without negative eigenvalues, to tune by its evidence",
            f"eigenvalues from {float(values.min()):.3g} to {float(values.max()):.3g}",
            "curvature=GGN(), or Hessian(damping=...)",
        )


def tunes_noise(posterior: Posterior, wanted: bool) -> bool:
    """Whether there is a noise precision to choose, and it is wanted.

    Raises:
        UnsupportedError: If it is, but the curvature does not follow the noise.
    """
    if not wanted or posterior.fitted.noise is None:
        return False
    posterior.check_noise_free()
    return True


def step(posterior: Posterior, evidence: Evidence, precisions: Tensor, scale: Tensor) -> Step:
    """One step of a trace, evaluated from the evidence."""
    with torch.no_grad():
        log_marginal = float(evidence.log_marginal(precisions, scale))
    gamma = float(evidence.effective_dimensions(precisions, scale).sum())
    return step_of(posterior, log_marginal, precisions, scale, gamma)


def step_of(
    posterior: Posterior, log_marginal: float | None, precisions: Tensor, scale: Tensor, gamma: float | None
) -> Step:
    """One step of a trace, its numbers at hand."""
    noise = posterior.fitted.scaled(float(scale)).noise
    return Step(log_marginal, tuple(precisions.tolist()), noise, gamma)


def chosen(
    posterior: P,
    precisions: Float[Tensor, " g"],
    scale: Tensor,
    steps: tuple[Step, ...],
    draws: Float[Tensor, "d k"] | None = None,
) -> P:
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
        return tuned
    return cast(P, tuned.begun(draws))
