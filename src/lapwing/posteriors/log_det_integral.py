"""The log determinant of a precision as the integral of the effective dimension over ever stronger priors."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import finite_evidence
from lapwing.ground.precision import wide, wide_like
from lapwing.ground.progress import track
from lapwing.ground.results import Solution
from lapwing.linalg import Diagonal
from lapwing.linear.perturbation import Perturbation
from lapwing.linear.problem import Problem
from lapwing.linear.solvers import Solver

TAIL = 0.01
"""Effective dimension, about, at which the integral over prior precisions ends: the rest is off by half its square."""

ACCURACY = 1e-4
"""Error of the quadrature, relative."""


def log_det_integral(
    problem: Problem,
    perturbation: Perturbation,
    solver: Solver,
    *,
    tail: float = TAIL,
    accuracy: float = ACCURACY,
    progress: bool | None = None,
) -> tuple[Float[Tensor, " k"], list[Solution]]:
    """``log det Λ / det A`` by each draw, float64: an integral over ever stronger priors.

        log det(I + s A⁻¹ G) = ∫_0^∞ γ(eᵗ A) dt,      γ(eᵗ A) = E[s ζ_tᵀ G ζ_t],  ζ_t ~ N(0, (s G + eᵗ A)⁻¹)

    the effective dimension (Antorán 2024, section 6.2.1). The same noise makes the draws at every t. In t, γ is a sum
    of logistic functions, analytic for ``|Im t| < π``: Gauss-Legendre quadrature converges geometrically. Beyond the T
    at which ``τ = s e⁻ᵀ tr(A⁻¹ G)`` is the tail, the rest is ``Σ log(1 + x_i)`` with ``Σ x_i = τ``: γ(e^T A) in its
    place is short of it by less than ``τ² / 2``.

    Args:
        problem: The problem.
        perturbation: The noise of k draws.
        solver: Solves for the draws.
        tail: Effective dimension, about, at which the integral ends.
        accuracy: Error of the quadrature, relative.
        progress: Whether to show a progress bar; ``None`` for after two seconds, in a terminal or notebook.

    Returns:
        The value of each draw, whose mean is unbiased but for the quadrature's error; the solves.

    Cost:
        About ``0.75 T`` block solves, the first ones easy, and as many products with G;
        ``T = log(s tr(A⁻¹ G) / tail)``.
    """
    s = problem.scale
    end = end_of_integral(problem, perturbation, tail)
    draws_in_prior_units = perturbation.prior  # A_t^½ ζ_t: at t = ∞ the noise of the prior
    integral = torch.zeros(draws_in_prior_units.shape[1], **wide_like(draws_in_prior_units))
    solutions = list[Solution]()
    for point in track(points_of_integral(end, accuracy), "evidence", unit="priors", alike=False, progress=progress):
        prior = Diagonal(math.exp(point.time) * problem.prior.values)
        stronger = problem.with_prior(prior, s)
        with torch.no_grad():
            start = prior.inverse_root() @ draws_in_prior_units
            solution = solver.solve(stronger, perturbation.right_hand_side(stronger), initial=start)
            zeta = solution.value
            draws_in_prior_units = prior.root() @ zeta
            g_zeta = stronger.curvature @ zeta
            integral += point.weight * s * (wide(zeta) * wide(g_zeta)).sum(0)
        solutions.append(replace(solution, value=zeta[:0]))
    return integral, solutions


@final
@dataclass(frozen=True)
class Point:
    """Where the integral is read, and with which weight.

    Args:
        time: t of the prior ``eᵗ A``.
        weight: Its weight in the sum.
    """

    time: float
    weight: float


def end_of_integral(problem: Problem, perturbation: Perturbation, tail: float) -> float:
    """``T = log(s tr(A⁻¹ G) / tail)``, at least 0, with the trace estimated from the noise ``R ε₁``.

    Raises:
        NumericalError: If the trace is not finite.
    """
    whitened = problem.prior.inverse_root() @ perturbation.data
    trace = problem.scale * float(wide(whitened).square().sum(0).mean())
    finite_evidence(trace, "log determinant")
    return max(0.0, math.log(trace / tail)) if trace > 0 else 0.0


def points_of_integral(end: float, accuracy: float) -> list[Point]:
    """From the strongest prior on: the rest beyond T with weight 1, then the quadrature over [0, T], from T down."""
    points = [Point(end, 1.0)]
    for place, weight in quadrature(end, accuracy):
        points.append(Point(end * (1 - place), end * weight))
    return points


def quadrature(span: float, accuracy: float = ACCURACY) -> list[tuple[float, float]]:
    """Gauss-Legendre points in [0, 1] and weights, for a sum of logistic functions of ``span t``; none for no span."""
    if not span:
        return []
    points = max(2, math.ceil(-math.log(accuracy) / (2 * math.asinh(2 * math.pi / span))))
    nodes, weights = np.polynomial.legendre.leggauss(points)
    return list(zip(((1 + nodes) / 2).tolist(), (weights / 2).tolist(), strict=True))
