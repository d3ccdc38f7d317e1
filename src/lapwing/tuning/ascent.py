"""Climbing the log evidence in the logarithms of prior and noise precisions, in which it is concave at fixed weights.

By Newton's method on the stationarity conditions where the evidence is a sum over eigenvalues and everything has a
closed form; by L-BFGS with automatic derivatives where it is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ConvergenceWarning, finite_evidence, warn
from lapwing.linear.evidence import LogEvidence
from lapwing.linear.log_det_ratio import Spectrum
from lapwing.tuning.choices import BOUNDS

LEAP = 7.0
"""Largest Newton step in a log precision: a factor of a thousand."""

TOLERANCE = 1e-10
"""Newton stops when no precision moves by more, relatively."""


@final
@dataclass(frozen=True, eq=False)
class Height:
    """Where the climb has come to.

    Args:
        precisions: Prior precision of each group.
        scale: Noise precision, relative to the one the curvature was computed with.
        log_marginal: Log evidence, nats.
        effective_dimension: Directions the data determined.
    """

    precisions: Float[Tensor, " g"]
    scale: Float[Tensor, ""]
    log_marginal: float
    effective_dimension: float


def height_at(
    evidence: LogEvidence, precisions: Float[Tensor, " g"], scale: Float[Tensor, ""], gamma: Float[Tensor, " g"]
) -> Height:
    """Where a climb has come to, the parts of its effective dimension at hand."""
    with torch.no_grad():
        value = float(evidence.log_marginal(precisions, scale))
    return Height(precisions, scale, value, float(gamma.sum()))


def climb(
    evidence: LogEvidence, precisions: Float[Tensor, " g"], scale: Float[Tensor, ""], *, noisy: bool, steps: int
) -> Iterator[Height]:
    """Points of increasing evidence, the last one its maximum.

    Args:
        evidence: The log evidence.
        precisions: Prior precisions to start from.
        scale: Relative noise precision to start from.
        noisy: Whether the noise may change.
        steps: Most steps.

    Raises:
        NumericalError: If the evidence is not finite where it starts.

    Warns:
        ConvergenceWarning: If they were too few.
    """
    with torch.no_grad():
        finite_evidence(float(evidence.log_marginal(precisions, scale)))
    if isinstance(evidence.complexity, Spectrum) and evidence.shift is None:
        return newton(evidence, evidence.complexity, precisions, scale, noisy, steps)
    return quasi_newton(evidence, precisions, scale, noisy, steps)


def newton(
    evidence: LogEvidence, spectrum: Spectrum, precisions: Tensor, scale: Tensor, noisy: bool, steps: int
) -> Iterator[Height]:
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
    alpha, s, best, step = precisions.clone(), scale.clone(), None, None
    for _ in range(steps):
        gamma, w = spectrum.determined(alpha, s)
        there = height_at(evidence, alpha, s, gamma)
        if best is None or step is None or there.log_marginal > best.log_marginal - _rounding(best):
            yield there
            best, step = there, newton_step(evidence, alpha, s, gamma, w, noisy)
        else:
            step = step / 2
        leap = step.clamp(-LEAP, LEAP).exp()
        alpha, s = (best.precisions * leap[:-1]).clamp(*BOUNDS), (best.scale * leap[-1]).clamp(*BOUNDS)
        moved = torch.cat([alpha / best.precisions, (s / best.scale).view(1)]).log().abs()
        if float(moved.max()) < TOLERANCE:
            break
    else:
        warn_of_steps(steps)
    last = height_at(evidence, alpha, s, spectrum.determined(alpha, s)[0])
    yield last if best is None or last.log_marginal >= best.log_marginal - _rounding(best) else best


def newton_step(
    evidence: LogEvidence,
    alpha: Float[Tensor, " g"],
    s: Float[Tensor, ""],
    gamma: Float[Tensor, " g"],
    w: Float[Tensor, " g"],
    noisy: bool,
) -> Float[Tensor, " m"]:
    """The step in the log precisions, the noise's last; see ``newton``."""
    total = gamma.clamp_min(1e-300)
    slope = 1 + w / total
    move = (total / (alpha * evidence.square_norms.clamp_min(1e-300))).log() / slope
    if not noisy:
        return torch.cat([move, move.new_zeros(1)])
    misfit = s * max(evidence.misfit, 1e-300)
    free = evidence.observations - gamma.sum()
    if free > gamma.sum():
        off, pull, own = (free / misfit).log(), w / free, 1 + w.sum() / free
    else:
        whole = misfit + gamma.sum()
        off, pull, own = (evidence.observations / whole).log(), w / whole, (misfit + w.sum()) / whole
    shift = (off + (pull * move).sum()) / (own - (pull * (w / total) / slope).sum())
    return torch.cat([move + (w / total) / slope * shift, shift.view(1)])


def _rounding(point: Height) -> float:
    """What an evidence may be off by."""
    return TOLERANCE * (1 + abs(point.log_marginal))


def warn_of_steps(steps: int) -> None:
    """Warn that so many steps did not reach the maximum."""
    warn(
        f"the search for the largest evidence had not converged after {steps} steps. Try a larger steps=, or a prior "
        "with fewer precisions",
        ConvergenceWarning,
    )


def quasi_newton(evidence: LogEvidence, precisions: Tensor, scale: Tensor, noisy: bool, steps: int) -> Iterator[Height]:
    """L-BFGS on the log evidence; the effective dimension comes with the gradient ``(γ_g - α_g |θ_g|²) / 2``.

    Cost:
        A log-determinant and its derivative an evaluation.
    """
    from scipy.optimize import minimize  # half a second to import

    start = torch.cat([precisions.log(), scale.log().view(1)[: int(noisy)]])
    groups, points = len(precisions), list[Height]()

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        logs = torch.tensor(x, dtype=torch.float64, device=start.device, requires_grad=True)
        with torch.enable_grad():
            alpha, s = logs[:groups].exp(), logs[-1].exp() if noisy else scale
            value = evidence.log_marginal(alpha, s)
            (gradient,) = torch.autograd.grad(value, logs)
        alpha, s = alpha.detach(), s.detach()
        gamma = 2 * gradient[:groups] + alpha * evidence.fit(alpha, s)[1]
        height = finite_evidence(value.item())
        points.append(Height(alpha, s, height, float(gamma.sum())))
        return -height, -gradient.cpu().numpy()

    limits = [(math.log(BOUNDS[0]), math.log(BOUNDS[1]))] * len(start)
    options = {"maxiter": steps, "ftol": 1e-15, "gtol": 1e-9}
    found = minimize(objective, start.cpu().numpy(), jac=True, method="L-BFGS-B", bounds=limits, options=options)
    best = -math.inf
    for point in points:
        if point.log_marginal > best:
            best = point.log_marginal
            yield point
    if found.status == 1:  # the limit of steps
        warn_of_steps(steps)
