"""The prior precision and the noise of largest evidence: by its gradient, or by MacKay's fixed point."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, final, get_args

import torch

from lapwing.ground.errors import ConvergenceWarning, check_option, warn
from lapwing.ground.progress import track
from lapwing.posteriors import Posterior
from lapwing.tuning.ascent import Height, climb, height_at, warn_of_steps
from lapwing.tuning.choices import BOUNDS, At, P, ended, evidence_at, fixed_point, step_of, tunes_noise

Noise: TypeAlias = Literal[True, False, "residuals"]
"""Whether, and by what, the noise of a Gaussian likelihood is chosen."""


@final
@dataclass(frozen=True)
class EvidenceGradient:
    """Maximises the log evidence over log precisions, where it is concave (MacKay 1992; Immer et al. 2021, section 3).

    Args:
        noise: How to choose the noise of a Gaussian likelihood, one factor for all outputs: ``True`` with the prior, by
            the evidence; ``"residuals"`` by the likelihood of the training data at the trained weights,
            ``s = N / misfit``, for curvatures that count more directions than the data determined; ``False`` not.
        at: ``"weights"`` takes the evidence at the trained weights; ``"mode"`` at the mode of the linear model, which
            moves with the hyper-parameters: exact for Gaussian likelihoods only.
        steps: Most steps.

    Cost:
        No data. An eigendecomposition once; then a handful of Newton steps, each a few passes over the eigenvalues.
        Several precisions with ``Full``, and ``at="mode"``: L-BFGS, a Cholesky factorisation or a solve an evaluation.

    Example:
        >>> import torch
        >>> import lapwing as lw
        >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(9, 2), torch.arange(9) % 3
        >>> posterior = lw.Laplace(lw.Categorical()).fit(model, (x, y))
        >>> lw.tune(posterior, EvidenceGradient()).log_marginal() >= posterior.log_marginal()
        True
    """

    noise: Noise = True
    at: At = "weights"
    steps: int = 200

    def __post_init__(self) -> None:
        check_option("noise", self.noise, get_args(Noise))

    def tune(self, posterior: P, progress: bool | None) -> P:
        """The posterior of largest evidence.

        Raises:
            NumericalError: If the curvature is indefinite.

        Warns:
            ConvergenceWarning: If it ended before, or at an end of the range of a precision, or with noise several
                times the residuals.
        """
        evidence = evidence_at(posterior, self.at)
        chooses, scale = tunes_noise(posterior, self.noise is not False), posterior.scale
        if chooses and self.noise == "residuals":
            residuals = posterior.totals.observations / max(posterior.totals.misfit, 1e-300)
            scale = scale.new_tensor(residuals).clamp(*BOUNDS)
        joint = chooses and self.noise != "residuals"
        points = climb(evidence, posterior.prior_precisions, scale, noisy=joint, steps=self.steps)
        return last_of(points, posterior, "evidence", chooses, progress)


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

    def tune(self, posterior: P, progress: bool | None) -> P:
        """The posterior at the fixed point.

        Raises:
            NumericalError: If the curvature is indefinite.

        Warns:
            ConvergenceWarning: If it ended before.
        """
        noisy = tunes_noise(posterior, self.noise)
        return last_of(self._points(posterior, noisy), posterior, "MacKay", noisy, progress)

    def _points(self, posterior: Posterior, noisy: bool) -> Iterator[Height]:
        evidence = evidence_at(posterior, self.at)
        precisions, scale = posterior.prior_precisions, posterior.scale
        gamma = evidence.effective_dimensions(precisions, scale)
        yield height_at(evidence, precisions, scale, gamma)
        for _ in range(self.steps):
            misfit, norms = evidence.fit(precisions, scale)
            before = torch.cat([precisions, scale.view(1)])
            whole = fixed_point(gamma, norms, misfit, scale, evidence.observations, noisy)
            precisions, scale = (precisions * whole[0]).sqrt(), (scale * whole[1]).sqrt()
            gamma = evidence.effective_dimensions(precisions, scale)
            yield height_at(evidence, precisions, scale, gamma)
            if bool(((torch.cat([precisions, scale.view(1)]) / before).log().abs() < self.tolerance).all()):
                return
        warn_of_steps(self.steps)


def last_of(points: Iterator[Height], posterior: P, name: str, noisy: bool, progress: bool | None) -> P:
    """The posterior at the last of some points, all of them in its trace.

    Args:
        points: The way up.
        posterior: The posterior before.
        name: Of the progress bar.
        noisy: Whether the noise was chosen.
        progress: Whether to show one; ``None`` for after two seconds, in a terminal or notebook.

    Warns:
        ConvergenceWarning: If the last is no answer.
    """
    found: list[Height] = []
    try:
        found.extend(track(points, name, progress=progress))
    except KeyboardInterrupt:
        if not found:
            raise
        warn(f"interrupted after {len(found) - 1} steps: these choices are the last", ConvergenceWarning)
    taken = [step_of(posterior, p.log_marginal, p.precisions, p.scale, p.effective_dimension) for p in found]
    return ended(posterior, found[-1].precisions, found[-1].scale, tuple(taken), noisy=noisy)
