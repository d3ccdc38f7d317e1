"""Steps that raise the evidence of the tangent model while its mode stays where it is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import UnsupportedError
from lapwing.jacobian.tangent import Mode
from lapwing.linear.bounds import decoupled_precisions, decoupled_scale
from lapwing.linear.evidence import Evidence
from lapwing.posteriors import Posterior, Step
from lapwing.posteriors.dimension import LEAST, Dimensions
from lapwing.tuning.ascent import BOUNDS, climb
from lapwing.tuning.choices import step_of

MStep: TypeAlias = Literal["mackay", "bound", "elbo"]
"""MacKay's fixed point, the maximum of the M-bound, or that of the decoupled bound."""

CLIMB = 200
"""Most steps to the maximum of the M-bound."""


@final
@dataclass(frozen=True, eq=False)
class Expected:
    """What expectation says at some prior and noise precision.

    Args:
        precisions: Prior precision of each group.
        scale: Relative noise precision.
        mode: The mode of the tangent model.
        norms: ``|w*_g|²`` of each group, every weight times its precision relative to the group's.
        dimensions: Effective dimension of each group.
        sizes: Weights in each group.
        observations: Scalar observations; 0 where there is no noise.
        evidence: The evidence at w*, where it is exact.
    """

    precisions: Float[Tensor, " g"]
    scale: Float[Tensor, ""]
    mode: Mode
    norms: Float[Tensor, " g"]
    dimensions: Dimensions
    sizes: Float[Tensor, " g"]
    observations: float
    evidence: Evidence | None = None

    @property
    def log_marginal(self) -> float | None:
        """Log evidence at w*, nats, where it is exact."""
        if self.evidence is None:
            return None
        with torch.no_grad():
            return float(self.evidence.log_marginal(self.precisions, self.scale))

    @property
    def gamma(self) -> float:
        """Effective dimension: directions the data determined."""
        return float(self.dimensions.groups.sum())

    def step(self, posterior: Posterior, log_marginal: float | None) -> Step:
        """What it leaves in the trace of a posterior.

        Args:
            posterior: The posterior.
            log_marginal: Log evidence, nats, where it is exact.
        """
        return replace(
            step_of(posterior, log_marginal, self.precisions, self.scale, self.dimensions.total),
            effective_dimension_error=self.dimensions.error or None,
            mode_norms=tuple(self.norms.tolist()),
            mode_nll=self.mode.nll,
        )

    @property
    def errors(self) -> Float[Tensor, " m"]:
        """Standard error of the logarithm of each precision that follows, the noise's last: of γ and of N - γ."""
        gamma = self.dimensions.groups
        errors = self.dimensions.errors / gamma.clamp_min(LEAST)
        free = max(self.observations - self.gamma, self.gamma)
        return torch.cat([errors, errors.new_tensor([self.dimensions.error / free if free else 0.0])])


def maximised(found: Expected, step: MStep, noisy: bool) -> tuple[Float[Tensor, " g"], Float[Tensor, ""]]:
    """The prior precisions and the relative noise precision that a step leads to.

        "mackay"    α_g = γ_g / |w*_g|²,  s = (N - γ) / misfit      (Antorán 2024, equation 2.45; Bishop 2006, 3.95)
        "bound"     argmax of 𝓜(α, s) = log p(y | w*) - ½ Σ_g α_g |w*_g|² - ½ log det(I + s A⁻¹ G)
        "elbo"      α_g = n_g / (|w*_g|² + tr Λ⁻¹_g),  s = N / (misfit + tr(G Λ⁻¹))

    Args:
        found: What expectation said.
        step: The step.
        noisy: Whether the noise may change.

    Raises:
        UnsupportedError: If the M-bound is asked for where it is not exact.
    """
    alpha, s, gamma = found.precisions, found.scale, found.dimensions.groups
    misfit = found.mode.misfit
    if step == "bound":
        if found.evidence is None:
            raise UnsupportedError(
                "a posterior whose log determinant is exact for step='bound'",
                "one that knows it by draws",
                "step='mackay'",
            )
        *_, best = climb(found.evidence, alpha, s, noisy=noisy, steps=CLIMB)
        alpha, s = best.precisions, best.scale
    elif step == "elbo":
        alpha = decoupled_precisions(alpha, gamma, found.norms, found.sizes)
        s = decoupled_scale(s, gamma, misfit, found.observations) if noisy else s
    else:
        alpha = gamma / found.norms.clamp_min(torch.finfo(torch.float64).tiny)
        s = mackay_scale(s, gamma, torch.tensor(misfit).to(s), found.observations) if noisy else s
    return alpha.clamp(*BOUNDS), s.clamp(*BOUNDS)


def mackay_scale(
    scale: Float[Tensor, ""], gamma: Float[Tensor, " g"], misfit: Float[Tensor, ""], observations: float
) -> Float[Tensor, ""]:
    """MacKay's step for the relative noise precision, ``s = (N - γ) / misfit`` (MacKay 1992, equation 4.10).

    Where γ is more than half of the N observations it overshoots, and turns negative beyond N; the step of expectation
    maximisation, ``s = N / (misfit + γ / s₀)``, takes its place: the fixed point is the same.

    Args:
        scale: s₀.
        gamma: Effective dimension of each group.
        misfit: Weighted squared error at s = 1.
        observations: Scalar observations N.
    """
    total = gamma.sum()
    if total > 0.5 * observations:
        return decoupled_scale(scale, gamma, float(misfit), observations)
    return (observations - total) / misfit.clamp_min(torch.finfo(torch.float64).tiny)
