"""Climbing the log evidence in the logarithms of prior and noise precisions, in which it is concave at fixed weights.

Two ways up: Newton's method on the stationarity conditions, where the evidence is a sum over eigenvalues and everything
has a closed form; L-BFGS with automatic derivatives, where it is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import minimize
from torch import Tensor

from lapwing.evidence import Evidence, Spectrum

BOUNDS = (1e-10, 1e12)
"""Precisions considered."""

LEAP = 7.0
"""Largest Newton step in a log precision: a factor of a thousand."""

TOLERANCE = 1e-10
"""Newton stops when no stationarity condition is off by more, relatively."""


@final
@dataclass(frozen=True, eq=False)
class Point:
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


def climb(
    evidence: Evidence, precisions: Float[Tensor, " g"], scale: Float[Tensor, ""], *, noisy: bool, steps: int
) -> Iterator[Point]:
    """Points of increasing evidence, the last one its maximum.

    Args:
        evidence: The log evidence.
        precisions: Prior precisions to start from.
        scale: Relative noise precision to start from.
        noisy: Whether the noise may change.
        steps: Most steps.
    """
    if isinstance(evidence.complexity, Spectrum) and evidence.shift is None:
        return newton(evidence, evidence.complexity, precisions, scale, noisy, steps)
    return quasi_newton(evidence, precisions, scale, noisy, steps)


def newton(
    evidence: Evidence, spectrum: Spectrum, precisions: Tensor, scale: Tensor, noisy: bool, steps: int
) -> Iterator[Point]:
    """Newton's method on MacKay's conditions ``log γ_g = log(α_g |θ_g|²)`` and ``log(N - γ) = log(s misfit)``.

    With t = sλ / (α + sλ), γ_g = Σ t and w_g = Σ t (1 - t) over the eigenvalues of a group, the slope of the first in
    log α is -(1 + w_g / γ_g), between -1 and -2: the steps never overshoot far and few are needed. Where γ exceeds N,
    as that of a diagonal can on the way, the second condition is ``log N = log(s misfit + γ)``.

    Cost:
        About ten passes over the eigenvalues a step.
    """
    alpha, s = precisions.clone(), scale.clone()
    norms = evidence.square_norms.clamp_min(1e-300)
    for _ in range(steps):
        scaled = s * spectrum.eigenvalues
        t = scaled / (scaled + spectrum.spread(alpha))
        gamma, w = spectrum.by_group(t, alpha), spectrum.by_group(t * (1 - t), alpha)
        value = evidence.log_marginal(alpha, s)
        yield Point(alpha, s, float(value), float(gamma.sum()))
        total = gamma.clamp_min(1e-300)
        off = (total / (alpha * norms)).log()
        slope = 1 + w / total
        move, shift = off / slope, alpha.new_zeros(())
        if noisy:
            misfit = s * max(evidence.misfit, 1e-300)
            free = evidence.observations - gamma.sum()
            if free > 0:
                off_noise, pull, own = (free / misfit).log(), w / free, 1 + w.sum() / free
            else:
                whole = misfit + gamma.sum()
                off_noise, pull, own = (evidence.observations / whole).log(), w / whole, (misfit + w.sum()) / whole
            reduced = own - (pull * (w / total) / slope).sum()
            shift = (off_noise + (pull * move).sum()) / reduced
            move = move + (w / total) / slope * shift
        alpha = (alpha * move.clamp(-LEAP, LEAP).exp()).clamp(*BOUNDS)
        s = (s * shift.clamp(-LEAP, LEAP).exp()).clamp(*BOUNDS)
        if float(torch.maximum(move.abs().max(), shift.abs())) < TOLERANCE:
            break
    gamma = evidence.effective_dimensions(alpha, s).sum()
    yield Point(alpha, s, float(evidence.log_marginal(alpha, s)), float(gamma))


def quasi_newton(evidence: Evidence, precisions: Tensor, scale: Tensor, noisy: bool, steps: int) -> Iterator[Point]:
    """L-BFGS on the log evidence; the effective dimension comes with the gradient ``(γ_g - α_g |θ_g|²) / 2``.

    Cost:
        A log-determinant and its derivative an evaluation.
    """
    start = torch.cat([precisions.log(), scale.log().view(1)[: int(noisy)]])
    groups, points = len(precisions), list[Point]()

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        logs = torch.tensor(x, dtype=torch.float64, device=start.device, requires_grad=True)
        with torch.enable_grad():
            alpha, s = logs[:groups].exp(), logs[-1].exp() if noisy else scale
            value = evidence.log_marginal(alpha, s)
            (gradient,) = torch.autograd.grad(value, logs)
        alpha, s = alpha.detach(), s.detach()
        gamma = 2 * gradient[:groups] + alpha * evidence.fit(alpha, s)[1]
        points.append(Point(alpha, s, value.item(), float(gamma.sum())))
        return -value.item(), -gradient.cpu().numpy()

    limits = [(math.log(BOUNDS[0]), math.log(BOUNDS[1]))] * len(start)
    options = {"maxiter": steps, "ftol": 1e-15, "gtol": 1e-9}
    minimize(objective, start.cpu().numpy(), jac=True, method="L-BFGS-B", bounds=limits, options=options)
    best = -math.inf
    for point in points:
        if point.log_marginal > best:
            best = point.log_marginal
            yield point
