"""The log evidence that is climbed: at the trained weights, or at the mode of the linear model around them."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypeAlias, get_args

from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import NumericalError, UnsupportedError, check_option
from lapwing.linalg.operators.eigenbasis import decompose
from lapwing.linear.evidence import LogEvidence
from lapwing.linear.log_det_ratio import Determinant, Spectrum
from lapwing.posteriors import Posterior

At: TypeAlias = Literal["weights", "mode"]
"""Where the evidence is taken: at the trained weights, or at the mode of the linear model around them."""


def evidence_at(posterior: Posterior, at: At) -> LogEvidence:
    """The evidence at the trained weights, or at the mode of the linear model around them.

    Raises:
        NumericalError: If the curvature is indefinite.
        UnsupportedError: If the evidence is not exact, or the mode not known in closed form.
    """
    check_option("at", at, get_args(At))
    evidence = posterior.evidence
    if evidence is None:
        raise UnsupportedError(
            "a posterior whose evidence is exact",
            f"a {type(posterior).__name__}, whose evidence is an estimate",
            "EM(), or tuning a LowRank(...) or KFAC() posterior, and its tuned prior and likelihood for this structure",
        )
    check_definite(evidence)
    if at == "weights":
        return evidence
    shift = posterior.mode_shift
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
    complexity = evidence.complexity
    if isinstance(complexity, Spectrum):
        values = complexity.eigenvalues
    elif isinstance(complexity, Determinant) and complexity.curvature is not None:
        values = decompose(complexity.curvature).values
    else:
        return
    if bool((values < 0).any()):
        raise NumericalError(
            "a curvature without negative eigenvalues, to tune by its evidence",
            f"eigenvalues from {float(values.min()):.3g} to {float(values.max()):.3g}",
            "curvature=GGN(), or Hessian(damping=...)",
        )
