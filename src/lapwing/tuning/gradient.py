"""Maximising the log evidence in the logarithms of prior and noise precisions, in which it is concave at fixed weights.

By Newton's method on the stationarity conditions where the evidence is a sum over eigenvalues and everything has a
closed form; by L-BFGS with automatic derivatives where it is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, final, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ConvergenceWarning, check_option, finite_evidence, warn
from lapwing.ground.precision import wide_like
from lapwing.linear.evidence import LogEvidence
from lapwing.linear.log_det_ratio import Spectrum
from lapwing.posteriors import Posterior
from lapwing.tuning.evidence import At, evidence_at
from lapwing.tuning.hyperparameters import BOUNDS, Hyperparameters
from lapwing.tuning.method import P
from lapwing.tuning.noise import NoiseRule, noise_rule_of, noises_by_evidence, output_residuals
from lapwing.tuning.result import EvidencePoint, hyperparameters_of, result_of_climb, tunes_noise

LEAP = 7.0
"""Largest Newton step in a log precision: a factor of a thousand."""

TOLERANCE = 1e-10
"""Newton stops when no precision moves by more, relatively."""

LEAST = 1e-300
"""What is divided by is no smaller."""

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
        with_noise = tunes_noise(posterior, self.noise is not False)
        start = hyperparameters_of(posterior)
        by_residuals = with_noise and self.noise == "residuals"
        if by_residuals:
            scale = posterior.totals.observations / max(posterior.totals.misfit, LEAST)
            start = replace(start, scale=start.scale.new_tensor(scale).clamp(*BOUNDS))
        points = climb(evidence, start, with_noise=with_noise and not by_residuals, steps=self.steps)
        return result_of_climb(points, posterior, "evidence", with_noise, progress)

    def noise_rule(self) -> NoiseRule | None:
        """See ``TunesNoise``.

        Cost:
            A prediction of the training data; by residuals a forward pass.
        """
        return noise_rule_of(self, self._noises)

    def _noises(self, posterior: Posterior) -> Float[Tensor, " c"]:
        """MacKay's step for each output, at which the evidence is stationary, or the noise of the residuals."""
        if self.noise == "residuals":
            sums = output_residuals(posterior, variances=False)
            return sums.noises(sums.squares, None)
        return noises_by_evidence(posterior, evidence_at(posterior, self.at))


def climb(evidence: LogEvidence, start: Hyperparameters, *, with_noise: bool, steps: int) -> Iterator[EvidencePoint]:
    """Points of increasing evidence, the last one its maximum.

    Args:
        evidence: The log evidence.
        start: Prior precisions and noise to start from.
        with_noise: Whether the noise may change.
        steps: Most steps.

    Raises:
        NumericalError: If the evidence is not finite where it starts.

    Warns:
        ConvergenceWarning: If they were too few.
    """
    with torch.no_grad():
        finite_evidence(float(evidence.log_marginal(start.precisions, start.scale)))
    if isinstance(evidence.complexity, Spectrum) and evidence.shift is None:
        return newton_on_conditions(evidence, evidence.complexity, start, with_noise, steps)
    return quasi_newton(evidence, start, with_noise, steps)


def newton_on_conditions(
    evidence: LogEvidence, spectrum: Spectrum, start: Hyperparameters, with_noise: bool, steps: int
) -> Iterator[EvidencePoint]:
    """Newton's method on MacKay's conditions ``log γ_g = log(α_g |θ_g|²)`` and ``log(N - γ) = log(s misfit)``.

    With t = sλ / (α + sλ), γ_g = Σ t and w_g = Σ t (1 - t) over the eigenvalues of a group, the slope of the first in
    log α is -(1 + w_g / γ_g), between -1 and -2: the steps never overshoot far and few are needed. Where γ is more
    than half of N, and that of a diagonal can exceed it, the second condition is ``log N = log(s misfit + γ)``. A step
    that lowers the evidence is taken back and halved.

    Warns:
        ConvergenceWarning: If it ended before its maximum.

    Cost:
        Two passes over the eigenvalues a step.
    """
    here = start
    best: EvidencePoint | None = None
    step = torch.zeros_like(start.values)
    for _ in range(steps):
        gamma, w = spectrum.determined(here.precisions, here.scale)
        there = EvidencePoint.of(evidence, here, gamma)
        if best is None or there.log_marginal > best.log_marginal - evidence_rounding(best):
            yield there
            best = there
            step = newton_step(evidence, here, gamma, w, with_noise)
        else:
            step = step / 2
        leap = step.clamp(-LEAP, LEAP).exp()
        precisions = (best.hyperparameters.precisions * leap[:-1]).clamp(*BOUNDS)
        scale = (best.hyperparameters.scale * leap[-1]).clamp(*BOUNDS)
        here = Hyperparameters(precisions, scale)
        if float(here.log_moves(best.hyperparameters).abs().max()) < TOLERANCE:
            break
    else:
        warn_of_steps(steps)
    gamma, _ = spectrum.determined(here.precisions, here.scale)
    last = EvidencePoint.of(evidence, here, gamma)
    if best is None or last.log_marginal >= best.log_marginal - evidence_rounding(best):
        yield last
    else:
        yield best


def newton_step(
    evidence: LogEvidence,
    here: Hyperparameters,
    gamma: Float[Tensor, " g"],
    w: Float[Tensor, " g"],
    with_noise: bool,
) -> Float[Tensor, " m"]:
    """The step in the log precisions, the noise's last; see ``newton_on_conditions``.

    With ``r_g`` and ``r`` what the logarithms of the two conditions lack, it solves

        (1 + w_g / γ_g) Δ_g - (w_g / γ_g) δ = r_g,      b δ - Σ_g p_g Δ_g = r

    for Δ in log α and δ in log s, where ``p_g = w_g / (N - γ)`` and ``b = 1 + Σ_g p_g``, or beyond half of N
    ``p_g = w_g / (s misfit + γ)`` and ``b = (s misfit + Σ_g w_g) / (s misfit + γ)``.
    """
    alpha = here.precisions
    s = here.scale
    determined = gamma.clamp_min(LEAST)
    ratio = w / determined
    slope = 1 + ratio
    lacking = (determined / (alpha * evidence.square_norms.clamp_min(LEAST))).log()
    move = lacking / slope
    if not with_noise:
        return torch.cat([move, move.new_zeros(1)])
    misfit = s * max(evidence.misfit, LEAST)
    free = evidence.observations - gamma.sum()
    if free > gamma.sum():
        noise_lacking = (free / misfit).log()
        pull = w / free
        noise_slope = 1 + w.sum() / free
    else:
        whole = misfit + gamma.sum()
        noise_lacking = (evidence.observations / whole).log()
        pull = w / whole
        noise_slope = (misfit + w.sum()) / whole
    noise_move = (noise_lacking + (pull * move).sum()) / (noise_slope - (pull * ratio / slope).sum())
    return torch.cat([move + ratio / slope * noise_move, noise_move.view(1)])


def evidence_rounding(point: EvidencePoint) -> float:
    """What an evidence may be off by."""
    return TOLERANCE * (1 + abs(point.log_marginal))


def warn_of_steps(steps: int) -> None:
    """Warn that so many steps did not reach the maximum."""
    warn(
        f"the search for the largest evidence had not converged after {steps} steps. Try a larger steps=, or a prior "
        "with fewer precisions",
        ConvergenceWarning,
    )


def quasi_newton(
    evidence: LogEvidence, start: Hyperparameters, with_noise: bool, steps: int
) -> Iterator[EvidencePoint]:
    """L-BFGS on the log evidence; the effective dimension comes with the gradient ``(γ_g - α_g |θ_g|²) / 2``.

    A noise that is to change starts at most a ``LEAP`` from that of the residuals: in other units of the targets the
    first step would go far beyond.

    Cost:
        A log-determinant and its derivative an evaluation.
    """
    from scipy.optimize import minimize  # half a second to import

    groups = len(start.precisions)
    if with_noise:
        by_residuals = evidence.observations / max(evidence.misfit, LEAST)
        near = start.scale.clamp(by_residuals * math.exp(-LEAP), by_residuals * math.exp(LEAP))
        start = replace(start, scale=near.clamp(*BOUNDS))
    logs = start.values.log() if with_noise else start.precisions.log()
    points = list[EvidencePoint]()

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        here = torch.tensor(x, requires_grad=True, **wide_like(logs))
        with torch.enable_grad():
            alpha = here[:groups].exp()
            s = here[-1].exp() if with_noise else start.scale
            value = evidence.log_marginal(alpha, s)
            (gradient,) = torch.autograd.grad(value, here)
        there = Hyperparameters(alpha.detach(), s.detach())
        _, norms = evidence.fit(there.precisions, there.scale)
        gamma = 2 * gradient[:groups] + there.precisions * norms
        height = finite_evidence(value.item())
        points.append(EvidencePoint(there, height, float(gamma.sum())))
        return -height, -gradient.cpu().numpy()

    limits = [(math.log(BOUNDS[0]), math.log(BOUNDS[1]))] * len(logs)
    options = {"maxiter": steps, "ftol": 1e-15, "gtol": 1e-9}
    found = minimize(objective, logs.cpu().numpy(), jac=True, method="L-BFGS-B", bounds=limits, options=options)
    best = -math.inf
    for point in points:
        if point.log_marginal > best:
            best = point.log_marginal
            yield point
    if found.status == 1:  # the limit of steps
        warn_of_steps(steps)
