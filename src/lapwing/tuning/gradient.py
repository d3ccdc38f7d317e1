"""The prior precision and the noise of largest evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, final, get_args

from tqdm.auto import tqdm

from lapwing.ground.errors import check_option
from lapwing.tuning.ascent import BOUNDS, climb
from lapwing.tuning.choices import At, P, chosen, evidence_at, step_of, tunes_noise
from lapwing.tuning.endings import warn_of_endings

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

    def tune(self, posterior: P, progress: bool) -> P:
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
            scale = scale.new_tensor(posterior.totals.observations / max(posterior.totals.misfit, 1e-300)).clamp(
                *BOUNDS
            )
        joint = chooses and self.noise != "residuals"
        climbing = climb(evidence, posterior.prior_precisions, scale, noisy=joint, steps=self.steps)
        points = list(tqdm(climbing, desc="evidence", disable=not progress, unit="step", leave=False))
        taken = [step_of(posterior, p.log_marginal, p.precisions, p.scale, p.effective_dimension) for p in points]
        warn_of_endings(posterior, points[-1].precisions, points[-1].scale, noisy=chooses)
        return chosen(posterior, points[-1].precisions, points[-1].scale, tuple(taken))
