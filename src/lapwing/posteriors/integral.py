"""The evidence's charge for what the data determined, from draws: an integral over prior precisions."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm

from lapwing.ground.results import Solution
from lapwing.linalg import Diagonal
from lapwing.linear.problem import Perturbation, Problem
from lapwing.linear.solvers import Solver

TAIL = 0.01
"""Effective dimension, about, at which the integral over prior precisions ends: the rest is off by half its square."""

ACCURACY = 1e-4
"""Error of the quadrature, relative."""


def squares_of(problem: Problem, draws: Float[Tensor, "d k"]) -> Float[Tensor, " k"]:
    """``ζᵀ G ζ`` of each draw ζ, float64.

    Args:
        problem: The problem.
        draws: ζ.

    Cost:
        A product with G.
    """
    with torch.no_grad():
        return (draws.double() * (problem.curvature @ draws).double()).sum(0)


def log_det_ratios(
    problem: Problem, perturbation: Perturbation, solver: Solver, *, progress: bool = False
) -> tuple[Float[Tensor, " k"], list[Solution]]:
    """``log det Λ / det A`` by each draw, float64: the integral of its effective dimension over prior precisions.

        log det(I + s A⁻¹ G) = ∫_0^∞ γ(eᵗ A) dt,      γ(eᵗ A) = E[s ζ_tᵀ G ζ_t],  ζ_t ~ N(0, (s G + eᵗ A)⁻¹)

    since ``d/dt log det(I + s e⁻ᵗ A⁻¹ G) = -γ(eᵗ A)``. The same noise makes the draws at every t. In t, γ is a sum of
    logistic functions, analytic for ``|Im t| < π``: Gauss-Legendre quadrature converges geometrically. Beyond the T at
    which ``τ = s e⁻ᵀ tr(A⁻¹ G)`` is 0.01, the rest is ``Σ log(1 + x_i)`` with ``Σ x_i = τ``: γ(e^T A) in its place is
    short of it by less than ``τ² / 2``.

    Args:
        problem: The problem, at t = 0.
        perturbation: The noise of k draws.
        solver: Solves for the draws.
        progress: Whether to show a progress bar.

    Returns:
        The value of each draw, whose mean is unbiased but for the quadrature's error, about 1e-4 of it; the solves.

    Cost:
        About ``0.75 T`` block solves, the first ones easy, and as many products with G; ``T = log(100 s tr(A⁻¹ G))``.
    """
    scaled = problem.scale**0.5 * (problem.prior.inverse_root() @ perturbation.data)
    trace = float(scaled.double().square().sum(0).mean())
    span = max(0.0, math.log(trace / TAIL)) if trace > 0 else 0.0
    total = torch.zeros(scaled.shape[1], dtype=torch.float64, device=scaled.device)
    standard = perturbation.prior
    solutions: list[Solution] = []
    steps = [(span, 1.0), *((span * time, span * weight) for time, weight in reversed(quadrature(span)))]
    for time, weight in tqdm(steps, desc="evidence", disable=not progress, leave=False):
        weaker = problem.with_prior(Diagonal(math.exp(time) * problem.prior.values), problem.scale)
        solution, standard = moved_draws(weaker, perturbation, solver, standard)
        total += weight * problem.scale * squares_of(weaker, solution.value)
        solutions.append(replace(solution, value=solution.value[:0]))
    return total, solutions


def moved_draws(
    problem: Problem, perturbation: Perturbation, solver: Solver, standard: Float[Tensor, "d k"]
) -> tuple[Solution, Float[Tensor, "d k"]]:
    """Draws under one prior, solved for from those under another, and the same in units of their prior, ``A^½ ζ``.

    Args:
        problem: The problem, with the prior that is wanted.
        perturbation: The noise of the draws, whatever the prior.
        solver: Solves for the draws.
        standard: The draws under the other prior, in units of it.
    """
    with torch.no_grad():
        b, start = perturbation.right_hand_side(problem), problem.prior.inverse_root() @ standard
        solution = solver.solve(problem, b, initial=start)
        return solution, problem.prior.root() @ solution.value


def quadrature(span: float) -> list[tuple[float, float]]:
    """Gauss-Legendre points in [0, 1] and weights, for a sum of logistic functions of ``span t``; none for no span."""
    if not span:
        return []
    points = max(2, math.ceil(-math.log(ACCURACY) / (2 * math.asinh(2 * math.pi / span))))
    nodes, weights = np.polynomial.legendre.leggauss(points)
    return list(zip(((1 + nodes) / 2).tolist(), (weights / 2).tolist(), strict=True))
