"""The prior precision and the noise of largest evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tqdm.auto import tqdm

from lapwing.ascent import climb
from lapwing.tuning.choices import At, P, chosen, evidence_at, step_of, tunes_noise


@final
@dataclass(frozen=True)
class EvidenceGradient:
    """Maximises the log evidence over log precisions, where it is concave (MacKay 1992; Immer et al. 2021, section 3).

    Args:
        noise: Whether to choose the noise of a Gaussian likelihood too: one factor for all outputs.
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

    noise: bool = True
    at: At = "weights"
    steps: int = 200

    def tune(self, posterior: P, progress: bool) -> P:
        """The posterior of largest evidence.

        Raises:
            NumericalError: If the curvature is indefinite.

        Warns:
            ConvergenceWarning: If it ended before.
        """
        evidence = evidence_at(posterior, self.at)
        noisy = tunes_noise(posterior, self.noise)
        climbing = climb(evidence, posterior.prior_precisions, posterior.scale, noisy=noisy, steps=self.steps)
        points = list(tqdm(climbing, desc="evidence", disable=not progress, unit="step", leave=False))
        taken = [step_of(posterior, p.log_marginal, p.precisions, p.scale, p.effective_dimension) for p in points]
        return chosen(posterior, points[-1].precisions, points[-1].scale, tuple(taken))
