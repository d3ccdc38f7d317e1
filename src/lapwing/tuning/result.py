"""What a search for hyper-parameters leaves: the steps of its trace, and the posterior with what it chose."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ConfigError, ConvergenceWarning, finite_evidence, warn
from lapwing.ground.progress import track
from lapwing.linear.evidence import LogEvidence
from lapwing.posteriors import Posterior, Step
from lapwing.tuning.hyperparameters import Hyperparameters, at_end
from lapwing.tuning.method import LinearPosterior, P, Q

SEVERAL = 3.0
"""A noise so many times the residuals at the trained weights is more than the data say."""


@final
@dataclass(frozen=True, eq=False)
class EvidencePoint:
    """A point that a climb of the evidence has come to.

    Args:
        hyperparameters: Prior precisions and noise.
        log_marginal: Log evidence, nats.
        effective_dimension: Directions the data determined.
    """

    hyperparameters: Hyperparameters
    log_marginal: float
    effective_dimension: float

    @classmethod
    def of(cls, evidence: LogEvidence, there: Hyperparameters, gamma: Float[Tensor, " g"]) -> EvidencePoint:
        """The point of these hyper-parameters, the parts of its effective dimension at hand."""
        with torch.no_grad():
            value = float(evidence.log_marginal(there.precisions, there.scale))
        return cls(there, value, float(gamma.sum()))


def hyperparameters_of(posterior: Posterior | LinearPosterior) -> Hyperparameters:
    """Those a posterior has now."""
    precisions = posterior.prior_precisions
    return Hyperparameters(precisions, precisions.new_tensor(posterior.noise_scale))


def tunes_noise(posterior: Posterior | LinearPosterior, wanted: bool) -> bool:
    """Whether there is a noise precision to choose, and it is wanted.

    Raises:
        UnsupportedError: If it is, but the curvature does not follow the noise.
    """
    if not wanted or posterior.fitted.noise is None:
        return False
    posterior.check_noise_free()
    return True


def step_of(
    posterior: Posterior | LinearPosterior, there: Hyperparameters, log_marginal: float | None, gamma: float | None
) -> Step:
    """One step of a trace, its numbers at hand."""
    noise = posterior.fitted.scaled(float(there.scale)).noise_precision
    return Step(log_marginal, tuple(there.precisions.tolist()), noise, gamma)


def measured_step(posterior: Posterior, there: Hyperparameters) -> Step:
    """One step of a trace; evidence and effective dimension where they have a closed form.

    Not of very many outputs, whose tens of millions of terms would take longer than a search over held-out data.
    """
    evidence = None if posterior.wide else posterior.evidence
    if evidence is None:
        return step_of(posterior, there, None, None)
    with torch.no_grad():
        log_marginal = float(evidence.log_marginal(there.precisions, there.scale))
    gamma = float(evidence.effective_dimensions(there.precisions, there.scale).sum())
    return step_of(posterior, there, log_marginal if math.isfinite(log_marginal) else None, gamma)


def with_hyperparameters(
    posterior: Q,
    best: Hyperparameters,
    steps: tuple[Step, ...] = (),
    draws: Float[Tensor, "d k"] | None = None,
) -> Q:
    """The posterior with these hyper-parameters.

    Args:
        posterior: The posterior before.
        best: Prior precisions and noise.
        steps: What led to them.
        draws: Where draws of a sampled posterior are now, nearly, in units in which the prior is standard normal.

    Raises:
        ConfigError: If they are not positive and finite: the evidence has no maximum.
    """
    values = best.values.detach().cpu()
    if not bool((torch.isfinite(values) & (values > 0)).all()):
        raise ConfigError(
            "hyper-parameters that are positive and finite", f"{values.tolist()}", "Validation(data), or another prior"
        )
    prior = posterior.prior.with_precisions(values[:-1])
    likelihood = posterior.fitted.scaled(float(values[-1]))
    tuned = posterior.with_hyperparameters(prior, likelihood, steps)
    if steps:
        tuned.warn_of_precision()
    return cast(Q, tuned if draws is None else tuned.starting_from(draws))


def result_of(
    posterior: Q,
    best: Hyperparameters,
    steps: tuple[Step, ...],
    draws: Float[Tensor, "d k"] | None = None,
    *,
    with_noise: bool,
) -> Q:
    """The posterior with the hyper-parameters at which a search ended; warned of where they are no answer.

    Args:
        posterior: The posterior before.
        best: Prior precisions and noise.
        steps: What led to them.
        draws: See ``with_hyperparameters``.
        with_noise: Whether the noise was chosen.

    Raises:
        ConfigError: If they are not positive and finite: the evidence has no maximum.

    Warns:
        ConvergenceWarning: If a precision is at an end of ``BOUNDS``, or the noise is several times the residuals at
            the trained weights.
    """
    if with_noise and at_end(float(best.scale)):
        warn(
            f"tuning took the noise precision to {float(best.scale):.0e} times what it was, the end of its range: what "
            "it judged by fits the training data exactly, or not at all. Try training the network to convergence, or "
            'EvidenceGradient(noise="residuals"), which takes the noise from the network\'s own residuals',
            ConvergenceWarning,
        )
    else:
        _warn_of_precisions(best)
        if with_noise:
            _warn_of_noise(posterior, best)
    return with_hyperparameters(posterior, best, steps, draws)


def _warn_of_precisions(best: Hyperparameters) -> None:
    """Warn where prior precisions are at an end of their range."""
    ends = [value for value in best.precisions.tolist() if at_end(value)]
    if not ends:
        return
    meaning = "no uncertainty of those weights" if ends[0] > 1 else "no prior at all"
    warn(
        f"tuning took {len(ends)} of {len(best.precisions)} prior precisions to {ends[0]:.0e}, an end of its range: it "
        f"asks for {meaning}, which is no answer. Try Isotropic() in place of a prior of several precisions, "
        "another structure, or Validation(data)",
        ConvergenceWarning,
    )


def _warn_of_noise(posterior: Posterior | LinearPosterior, best: Hyperparameters) -> None:
    """Warn where the noise is several times the residuals at the trained weights."""
    totals = posterior.totals
    if totals.misfit <= 0:
        return
    times = (totals.observations / (float(best.scale) * totals.misfit)) ** 0.5
    if times > SEVERAL:
        warn(
            f"the tuned noise is {times:.1f} times the residuals at the trained weights: this curvature counts more "
            f"directions as determined than {totals.observations:g} observations can determine. Try "
            'EvidenceGradient(noise="residuals"), or structure=Full() or weights=LastLayer()',
            ConvergenceWarning,
        )


def result_of_climb(
    points: Iterator[EvidencePoint], posterior: P, name: str, with_noise: bool, progress: bool | None
) -> P:
    """The posterior at the last of the points of a climb, all of them in its trace.

    Args:
        points: The way up.
        posterior: The posterior before.
        name: Of the progress bar.
        with_noise: Whether the noise was chosen.
        progress: Whether to show one; ``None`` for after two seconds, in a terminal or notebook.

    Raises:
        NumericalError: If its evidence is not finite.

    Warns:
        ConvergenceWarning: If the last is no answer.
    """
    found = list[EvidencePoint]()
    try:
        found.extend(track(points, name, progress=progress))
    except KeyboardInterrupt:
        if not found:
            raise
        warn(f"interrupted after {len(found) - 1} steps: these choices are the last", ConvergenceWarning)
    finite_evidence(found[-1].log_marginal)
    steps = [step_of(posterior, one.hyperparameters, one.log_marginal, one.effective_dimension) for one in found]
    return result_of(posterior, found[-1].hyperparameters, tuple(steps), with_noise=with_noise)
