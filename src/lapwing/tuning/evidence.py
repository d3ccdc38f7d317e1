"""The prior precision and the noise of largest evidence: by its gradient, or by MacKay's fixed point."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, cast, final, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ConvergenceWarning, check_option, finite_evidence, warn
from lapwing.ground.progress import track
from lapwing.posteriors import Posterior
from lapwing.tuning.ascent import Height, climb, height_at, warn_of_steps
from lapwing.tuning.choices import BOUNDS, At, P, ended, evidence_at, fixed_point, step_of, tunes_noise
from lapwing.tuning.noise import output_sums, own_noises

Noise: TypeAlias = Literal[True, False, "residuals"]
"""Whether, and by what, the noise of a Gaussian likelihood is chosen."""


@final
@dataclass(frozen=True)
class EvidenceGradient:
    """Maximises the log evidence over log precisions, where it is concave (MacKay 1992; Immer et al. 2021, section 3).

    Args:
        noise: How to choose the noise of a Gaussian likelihood, that of each output unless they share one: ``True``
            with the prior, by the evidence; ``"residuals"`` by the likelihood of the training data at the trained
            weights, ``ρ = N / Σ (y - f)²``, for curvatures that count more directions than the data determined;
            ``False`` not.
        at: ``"weights"`` takes the evidence at the trained weights; ``"mode"`` at the mode of the linear model, which
            moves with the hyper-parameters: exact for Gaussian likelihoods only.
        steps: Most steps.

    Cost:
        No data. An eigendecomposition once; then a handful of Newton steps, each a few passes over the eigenvalues.
        Several precisions with ``Full``, and ``at="mode"``: L-BFGS, a Cholesky factorisation or a solve an evaluation.
        A noise for each of several outputs: the same again, a fit and a prediction of the training data, about four
        times; with ``"residuals"`` once, and no prediction.

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

    @property
    def noisy(self) -> bool:
        """Whether the noise of a Gaussian likelihood is chosen."""
        return self.noise is not False

    def own_noises(self, posterior: Posterior) -> Float[Tensor, " c"]:
        """MacKay's step for the noise precision of each output, at which the evidence is stationary, or by residuals.

        Args:
            posterior: The posterior at whose prior and noise it is asked for.

        Cost:
            A prediction of the training data; by residuals a forward pass.
        """
        if self.noise == "residuals":
            sums = output_sums(posterior, variances=False)
            return sums.noises(sums.squares, None)
        return noises_by_evidence(posterior, self.at)

    def for_prior(self) -> EvidenceGradient:
        """The same for the prior alone."""
        return replace(self, noise=False)


@final
@dataclass(frozen=True)
class MacKay:
    """MacKay's fixed point: α_g ← γ_g / |θ_g|², ρ ← (N − γ) ρ / misfit (MacKay 1992, equations 4.9 and 4.10).

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

    @property
    def noisy(self) -> bool:
        """Whether the noise of a Gaussian likelihood is chosen."""
        return self.noise

    def own_noises(self, posterior: Posterior) -> Float[Tensor, " c"]:
        """MacKay's step for the noise precision of each output; see ``EvidenceGradient.own_noises``."""
        return noises_by_evidence(posterior, self.at)

    def for_prior(self) -> MacKay:
        """The same for the prior alone."""
        return replace(self, noise=False)

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


def noises_by_evidence(posterior: Posterior, at: At) -> Float[Tensor, " c"]:
    """MacKay's step for the noise precision of each output, where the evidence is taken at the weights or the mode.

    Args:
        posterior: The posterior.
        at: Where.
    """
    evidence = evidence_at(posterior, at)
    precisions, scale = posterior.prior_precisions, posterior.scale
    moved = None if evidence.shift is None else evidence.shift.weights + evidence.shift.step(precisions, scale)
    gamma = float(evidence.effective_dimensions(precisions, scale).sum())
    sums = output_sums(posterior, weights=moved)
    return sums.noises(cast(Tensor, own_noises(posterior)), gamma)


def last_of(points: Iterator[Height], posterior: P, name: str, noisy: bool, progress: bool | None) -> P:
    """The posterior at the last of some points, all of them in its trace.

    Args:
        points: The way up.
        posterior: The posterior before.
        name: Of the progress bar.
        noisy: Whether the noise was chosen.
        progress: Whether to show one; ``None`` for after two seconds, in a terminal or notebook.

    Raises:
        NumericalError: If its evidence is not finite.

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
    finite_evidence(found[-1].log_marginal)
    taken = [step_of(posterior, p.log_marginal, p.precisions, p.scale, p.effective_dimension) for p in found]
    return ended(posterior, found[-1].precisions, found[-1].scale, tuple(taken), noisy=noisy)
