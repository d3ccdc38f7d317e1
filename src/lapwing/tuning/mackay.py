"""MacKay's fixed point for the prior precision and the noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from tqdm.auto import tqdm

from lapwing.tuning.ascent import BOUNDS, warn_of_steps
from lapwing.tuning.choices import At, P, chosen, evidence_at, step, tunes_noise
from lapwing.tuning.endings import warn_of_endings
from lapwing.tuning.maximisation import mackay_scale


@final
@dataclass(frozen=True)
class MacKay:
    """MacKay's fixed point: α_g ← γ_g / |θ_g|², ρ ← (N − γ) ρ / misfit (MacKay 1992, equations 4.9 and 4.10).

    Half of each step is taken, in logarithms: whole ones can go round in a circle. Where γ is more than half of the N
    observations that step in ρ overshoots; the step of expectation maximisation takes its place.

    Args:
        noise: Whether to choose the noise of a Gaussian likelihood too.
        at: As in ``EvidenceGradient``.
        steps: Most steps.
        tolerance: Stops when no precision changes by more, relatively.

    Cost:
        As ``EvidenceGradient``, without a line search.

    Example:
        >>> import lapwing as lw
        >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(9, 2), torch.arange(9) % 3
        >>> posterior = lw.Laplace(lw.Categorical()).fit(model, (x, y))
        >>> lw.tune(posterior, MacKay()).log_marginal() >= posterior.log_marginal()
        True
    """

    noise: bool = True
    at: At = "weights"
    steps: int = 500
    tolerance: float = 1e-9

    def tune(self, posterior: P, progress: bool) -> P:
        """The posterior at the fixed point.

        Raises:
            NumericalError: If the curvature is indefinite.

        Warns:
            ConvergenceWarning: If it ended before.
        """
        evidence = evidence_at(posterior, self.at)
        noisy = tunes_noise(posterior, self.noise)
        precisions, scale = posterior.prior_precisions, posterior.scale
        taken = [step(posterior, evidence, precisions, scale)]
        for _ in tqdm(range(self.steps), desc="MacKay", disable=not progress, unit="step", leave=False):
            gamma = evidence.effective_dimensions(precisions, scale)
            misfit, norms = evidence.fit(precisions, scale)
            before = torch.cat([precisions, scale.view(1)])
            precisions = (precisions * gamma / norms).sqrt().clamp(*BOUNDS)
            if noisy:
                scale = (scale * mackay_scale(scale, gamma, misfit, evidence.observations)).sqrt().clamp(*BOUNDS)
            taken.append(step(posterior, evidence, precisions, scale))
            if bool(((torch.cat([precisions, scale.view(1)]) / before).log().abs() < self.tolerance).all()):
                break
        else:
            warn_of_steps(self.steps)
        warn_of_endings(posterior, precisions, scale, noisy=noisy)
        return chosen(posterior, precisions, scale, tuple(taken))
