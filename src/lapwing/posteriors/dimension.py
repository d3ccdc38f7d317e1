"""Effective dimensions by draws of outputs or weights, their integral the log determinant, and steps of tuning."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from tqdm.auto import tqdm

from lapwing.ground.results import Solution
from lapwing.linalg import Diagonal
from lapwing.linear.problem import Perturbation, Problem
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

    @classmethod
    def told(
        cls, outputs: Float[Tensor, "g k"] | None, weights: Float[Tensor, "g k"] | None, sizes: Float[Tensor, " g"]
    ) -> Dimensions:
        """What k draws ζ say, each group's within its size.

        Where both ways are given, for each group the one that varied less from draw to draw, by more than chance would
        have it; else the outputs', if they say that less than half of the directions were determined.

        Args:
            outputs: ``ζ_gᵀ (s G ζ)_g`` of each draw, where it is wanted.
            weights: ``n_g - ζ_gᵀ A_g ζ_g``, where it is wanted; one of the two must be.
            sizes: Weights ``n_g`` in each group.
        """
        each = weights if outputs is None else outputs
        assert each is not None
        if outputs is not None and weights is not None:
            each = torch.where(weights_are_better(outputs, weights, sizes)[:, None], weights, outputs)
        gamma = torch.minimum(each.mean(1).clamp_min(LEAST), (sizes - LEAST).clamp_min(LEAST))
        samples, total = each.shape[1], each.sum(0)
        if samples == 1:
            return cls(gamma, torch.zeros_like(gamma), float(total), 0.0)
        return cls(gamma, each.std(1) / samples**0.5, float(total.mean()), float(total.std()) / samples**0.5)


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
    problem: Problem,
    draws: Float[Tensor, "d k"],
    group: Int[Tensor, " d"],
    sizes: Float[Tensor, " g"],
    estimator: Estimator = "auto",
) -> Dimensions:
    """Effective dimensions of groups from draws ``ζ ~ N(0, Λ⁻¹)``, each within its group's size.

        γ_g = E[ζ_gᵀ (s G ζ)_g]          of the outputs, variance 2 Σ_i γ_i² for a single group
        γ_g = n_g - E[ζ_gᵀ A_g ζ_g]      of the weights, variance 2 Σ_i (1 - γ_i)²

    Both are unbiased; the first is the better where the data determined a small part of the directions, the second
    where they determined nearly all (Antorán 2024, section 6.2.1): for a single group their variances differ by
    ``2 (n - 2 γ)``. ``"auto"`` is the rule of ``Dimensions.told``.

    Args:
        problem: The problem.
        draws: ζ, one a column.
        group: Group of each weight.
        sizes: Weights ``n_g`` in each group.
        estimator: ``"auto"``, ``"outputs"`` or ``"weights"``.

    Cost:
        But for ``"weights"``, a product with G.

    Example:
        >>> from lapwing.linalg import Diagonal
        >>> from lapwing.linear.matrix import Matrix
        >>> problem = Problem.of(Matrix(torch.tensor([[1.0, 0.0]])), Diagonal(torch.ones(2)))
        >>> draws = torch.tensor([[1.0, -0.5], [1.0, 1.0]])
        >>> by_draws(problem, draws, torch.tensor([0, 1]), torch.ones(2)).groups.tolist()
        [0.375, 0.01]
    """
    zeta = draws.double()
    sizes = sizes.to(zeta)
    outputs = weights = None
    if estimator != "weights":
        outputs = problem.scale * output_squares(problem, draws, group, len(sizes))
    if estimator != "outputs":
        weights = sizes[:, None] - by_group(problem.prior.values.double()[:, None] * zeta.square(), group, len(sizes))
    return Dimensions.told(outputs, weights, sizes)


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
        noise_precision: Noise precision of a Gaussian likelihood (of its first output); ``None`` for others.
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
    noise_precision: float | None
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
