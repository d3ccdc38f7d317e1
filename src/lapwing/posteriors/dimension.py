"""Effective dimensions by draws of outputs or weights, their integral the log determinant, and steps of tuning."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lapwing.ground.errors import finite_evidence
from lapwing.ground.progress import track
from lapwing.ground.results import Solution
from lapwing.linalg import Diagonal
from lapwing.linear.perturbation import Perturbation
from lapwing.linear.problem import Problem
from lapwing.linear.solvers import Solver
from lapwing.predictive import Link

Estimator: TypeAlias = Literal["auto", "outputs", "weights"]
"""How the effective dimension comes from draws: of the outputs, of the weights, or by whichever varied less."""


LEAST = 0.01
"""Fewest directions an estimate is taken to say that the data determined, or left undetermined, in a group."""


@final
@dataclass(frozen=True, eq=False)
class Dimensions:
    """Effective dimensions of groups of weights.

    Args:
        groups: ``γ_g`` of each group, within its size.
        errors: Standard error of each; 0 where it is exact, or known from a single draw.
        total: Their sum, as the draws have it.
        error: Its standard error.
    """

    groups: Float[Tensor, " g"]
    errors: Float[Tensor, " g"]
    total: float
    error: float

    @classmethod
    def exact(cls, groups: Float[Tensor, " g"]) -> Dimensions:
        """Dimensions without an error."""
        return cls(groups, torch.zeros_like(groups), float(groups.sum()), 0.0)


def by_group(values: Float[Tensor, "d k"], group: Int[Tensor, " d"], groups: int) -> Float[Tensor, "g k"]:
    """Values of the weights added up over each group."""
    return values.new_zeros(groups, values.shape[1]).index_add(0, group.to(values.device), values)


def weights_are_better(
    outputs: Float[Tensor, "g k"], weights: Float[Tensor, "g k"], sizes: Float[Tensor, " g"]
) -> Bool[Tensor, " g"]:
    """Which groups are better told from the weights than from the outputs, by values of either at each draw.

    The logarithm of a variance measured from k draws is off by ``√(2 / (k - 1))``, that of a ratio of two by √2 times
    as much: twice that is taken for a difference.
    """
    rather = outputs.mean(1) > 0.5 * sizes
    samples = outputs.shape[1]
    if samples == 1:
        return rather
    ratio = (weights.var(1) / outputs.var(1)).log()
    return torch.where(ratio.abs() > 4 / (samples - 1) ** 0.5, ratio < 0, rather)


def by_draws(
    draws: Float[Tensor, "d k"],
    prior: Float[Tensor, " d"],
    group: Int[Tensor, " d"],
    squares: Callable[[], Float[Tensor, "g k"]],
    estimator: Estimator = "auto",
) -> Dimensions:
    """Effective dimensions of groups from draws ``ζ ~ N(0, Λ⁻¹)``, each within its group's size.

        γ_g = E[ζ_gᵀ (s G ζ)_g]          of the outputs, variance 2 Σ_i γ_i² for a single group
        γ_g = n_g - E[ζ_gᵀ A_g ζ_g]      of the weights, variance 2 Σ_i (1 - γ_i)²

    Both are unbiased; the first is the better where the data determined a small part of the directions, the second
    where they determined nearly all (Antorán 2024, section 6.2.1): for a single group their variances differ by
    ``2 (n - 2 γ)``. ``"auto"`` takes for each group the one that varied less from draw to draw, by more than chance
    would have it; else the outputs', if they say that less than half of the directions were determined.

    Args:
        draws: ζ, one a column.
        prior: A, the prior precision of each weight.
        group: Group of each weight, each with n_g of them.
        squares: Makes ``ζ_gᵀ (s G ζ)_g`` of each group and draw, unless ``"weights"`` does without.
        estimator: ``"auto"``, ``"outputs"`` or ``"weights"``.

    Example:
        >>> draws = torch.tensor([[1.0, -0.5], [1.0, 1.0]])
        >>> by_draws(draws, torch.ones(2), torch.tensor([0, 1]), lambda: draws.square(), "weights").groups.tolist()
        [0.375, 0.01]
    """
    zeta, sizes = draws.double(), torch.bincount(group).to(draws.device, torch.float64)
    if estimator == "outputs":
        each = squares()
    else:
        each = sizes[:, None] - by_group(prior.to(zeta)[:, None] * zeta.square(), group, len(sizes))
        if estimator == "auto":
            outputs = squares()
            each = torch.where(weights_are_better(outputs, each, sizes)[:, None], each, outputs)
    gamma = torch.minimum(each.mean(1).clamp_min(LEAST), (sizes - LEAST).clamp_min(LEAST))
    samples, total = each.shape[1], each.sum(0)
    if samples == 1:
        return Dimensions(gamma, torch.zeros_like(gamma), float(total), 0.0)
    return Dimensions(gamma, each.std(1) / samples**0.5, float(total.mean()), float(total.std()) / samples**0.5)


def output_squares(
    problem: Problem, draws: Float[Tensor, "d k"], group: Int[Tensor, " d"], groups: int
) -> Float[Tensor, "g k"]:
    """``ζ_gᵀ (G ζ)_g`` of each group of weights and draw, float64; a product with G."""
    with torch.no_grad():
        return by_group(draws.double() * (problem.curvature @ draws).double(), group, groups)


@final
@dataclass(frozen=True)
class Step:
    """One step of tuning.

    Args:
        log_marginal: Log evidence, nats; ``None`` where it was not measured.
        prior_precision: Precision of each group.
        noise_precision: Noise precision of a Gaussian likelihood, one number or one an output; ``None`` for others.
        effective_dimension: Directions the data determined at these values; ``None`` where it was not measured.
        validation_nll: Negative log predictive density of a held-out example, or of a mixture of training inputs,
            nats, where that was measured.
        effective_dimension_error: Standard error of the effective dimension, where it came from draws.
        mode_norms: ``|w*_g|²`` of each group at the mode of the tangent model, every weight times its precision
            relative to the group's, where the evidence was taken there.
        mode_nll: Negative log likelihood of the training data there, by the fitted likelihood, nats.
        link: The link by which the NLL was measured, where that takes one.
        temperature: The temperature of the logits there.
        bound: Lower bound on the log evidence, nats, where that was maximised; up to a constant that all steps share
            where the evidence is not exact.
    """

    log_marginal: float | None
    prior_precision: tuple[float, ...]
    noise_precision: float | tuple[float, ...] | None
    effective_dimension: float | None
    validation_nll: float | None = None
    effective_dimension_error: float | None = None
    mode_norms: tuple[float, ...] | None = None
    mode_nll: float | None = None
    bound: float | None = None
    link: Link | None = None
    temperature: float | None = None


TAIL = 0.01
"""Effective dimension, about, at which the integral over prior precisions ends: the rest is off by half its square."""

ACCURACY = 1e-4
"""Error of the quadrature, relative."""


def log_det_ratio(
    problem: Problem, perturbation: Perturbation, solver: Solver, *, progress: bool | None = None
) -> tuple[Float[Tensor, " k"], list[Solution]]:
    """``log det Λ / det A`` by each draw, float64: an integral over ever stronger priors.

        log det(I + s A⁻¹ G) = ∫_0^∞ γ(eᵗ A) dt,      γ(eᵗ A) = E[s ζ_tᵀ G ζ_t],  ζ_t ~ N(0, (s G + eᵗ A)⁻¹)

    the effective dimension (Antorán 2024, section 6.2.1). The same noise makes the draws at every t. In t, γ is a sum
    of logistic functions, analytic for ``|Im t| < π``: Gauss-Legendre quadrature converges geometrically. Beyond the T
    at which ``τ = s e⁻ᵀ tr(A⁻¹ G)`` is 0.01, the rest is ``Σ log(1 + x_i)`` with ``Σ x_i = τ``: γ(e^T A) in its place
    is short of it by less than ``τ² / 2``.

    Args:
        problem: The problem.
        perturbation: The noise of k draws.
        solver: Solves for the draws.
        progress: Whether to show a progress bar; ``None`` for after two seconds, in a terminal or notebook.

    Returns:
        The value of each draw, whose mean is unbiased but for the quadrature's error, about 1e-4 of it; the solves.

    Cost:
        About ``0.75 T`` block solves, the first ones easy, and as many products with G; ``T = log(100 s tr(A⁻¹ G))``.
    """
    scale, prior, standard = problem.scale, problem.prior, perturbation.prior
    trace = scale * float((prior.inverse_root() @ perturbation.data).double().square().sum(0).mean())
    finite_evidence(trace, "log determinant")
    end = max(0.0, math.log(trace / TAIL)) if trace > 0 else 0.0
    total, solutions = standard.new_zeros(standard.shape[1], dtype=torch.float64), list[Solution]()
    points = [(end, 1.0), *((end * (1 - place), end * weight) for place, weight in quadrature(end))]
    for time, weight in track(points, "evidence", unit="priors", alike=False, progress=progress):
        stronger = Diagonal(math.exp(time) * prior.values)
        now = problem.with_prior(stronger, scale)
        with torch.no_grad():
            start = stronger.inverse_root() @ standard  # that of the draws before
            solution = solver.solve(now, perturbation.right_hand_side(now), initial=start)
            draws, standard = solution.value, stronger.root() @ solution.value
            total += weight * scale * (draws.double() * (now.curvature @ draws).double()).sum(0)
        solutions.append(replace(solution, value=draws[:0]))
    return total, solutions


def quadrature(span: float) -> list[tuple[float, float]]:
    """Gauss-Legendre points in [0, 1] and weights, for a sum of logistic functions of ``span t``; none for no span."""
    if not span:
        return []
    points = max(2, math.ceil(-math.log(ACCURACY) / (2 * math.asinh(2 * math.pi / span))))
    nodes, weights = np.polynomial.legendre.leggauss(points)
    return list(zip(((1 + nodes) / 2).tolist(), (weights / 2).tolist(), strict=True))
