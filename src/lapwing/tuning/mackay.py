"""MacKay's fixed point of the evidence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from lapwing.posteriors import Posterior
from lapwing.tuning.evidence import At, evidence_at
from lapwing.tuning.fixed_point import fixed_point
from lapwing.tuning.gradient import warn_of_steps
from lapwing.tuning.hyperparameters import Hyperparameters
from lapwing.tuning.method import P
from lapwing.tuning.noise import NoiseRule, noise_rule_of, noises_by_evidence
from lapwing.tuning.result import EvidencePoint, hyperparameters_of, result_of_climb, tunes_noise


@final
@dataclass(frozen=True)
class MacKay:
    """MacKay's fixed point: ``α_g ← γ_g / |θ_g|²``, ``ρ ← (N − γ) ρ / misfit`` (MacKay 1992, equations 4.9, 4.10).

    Half of each step is taken, in logarithms: whole ones can go round in a circle. Where γ is more than half of the N
    observations that step in ρ overshoots; the step of expectation maximisation takes its place.

    Args:
        noise: Whether to choose the noise of a Gaussian likelihood too, that of each output unless they share one.
        at: As in ``EvidenceGradient``.
        steps: Most steps.
        tolerance: Stops when no precision changes by more, relatively.

    Cost:
        As ``EvidenceGradient``, without a line search.

    Example:
        >>> import torch
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

    def tune(self, posterior: P, progress: bool | None) -> P:
        """The posterior at the fixed point.

        Raises:
            NumericalError: If the curvature is indefinite.

        Warns:
            ConvergenceWarning: If it ended before.
        """
        with_noise = tunes_noise(posterior, self.noise)
        return result_of_climb(self._points(posterior, with_noise), posterior, "MacKay", with_noise, progress)

    def noise_rule(self) -> NoiseRule | None:
        """See ``TunesNoise``; by MacKay's step for each output.

        Cost:
            A prediction of the training data.
        """
        return noise_rule_of(self, self._noises)

    def _noises(self, posterior: Posterior) -> Float[Tensor, " c"]:
        return noises_by_evidence(posterior, evidence_at(posterior, self.at))

    def _points(self, posterior: Posterior, with_noise: bool) -> Iterator[EvidencePoint]:
        evidence = evidence_at(posterior, self.at)
        here = hyperparameters_of(posterior)
        gamma = evidence.effective_dimensions(here.precisions, here.scale)
        yield EvidencePoint.of(evidence, here, gamma)
        for _ in range(self.steps):
            before = here
            misfit, norms = evidence.fit(here.precisions, here.scale)
            whole = fixed_point(gamma, norms, misfit, here.scale, evidence.observations, with_noise)
            precisions = (here.precisions * whole.precisions).sqrt()
            scale = (here.scale * whole.scale).sqrt()
            here = Hyperparameters(precisions, scale)
            gamma = evidence.effective_dimensions(here.precisions, here.scale)
            yield EvidencePoint.of(evidence, here, gamma)
            if float(here.log_moves(before).abs().max()) < self.tolerance:
                return
        warn_of_steps(self.steps)
