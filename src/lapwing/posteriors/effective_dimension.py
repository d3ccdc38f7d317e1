"""Effective dimensions of groups of weights by draws from the posterior, of its outputs or of its weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lapwing.ground.precision import wide
from lapwing.linear.problem import Problem

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
    zeta = wide(draws)
    sizes = torch.bincount(group).to(zeta)
    if estimator == "outputs":
        gamma = squares()
    elif estimator == "weights":
        gamma = from_weights(zeta, prior, group, sizes)
    else:
        by_weights = from_weights(zeta, prior, group, sizes)
        by_outputs = squares()
        better = weights_are_better(by_outputs, by_weights, sizes)
        gamma = torch.where(better[:, None], by_weights, by_outputs)
    samples = gamma.shape[1]
    upper = (sizes - LEAST).clamp_min(LEAST)
    groups = torch.minimum(gamma.mean(1).clamp_min(LEAST), upper)
    total = gamma.sum(0)
    if samples == 1:
        return Dimensions(groups, torch.zeros_like(groups), float(total), 0.0)
    root = samples**0.5
    return Dimensions(groups, gamma.std(1) / root, float(total.mean()), float(total.std()) / root)


def from_weights(
    zeta: Float[Tensor, "d k"], prior: Float[Tensor, " d"], group: Int[Tensor, " d"], sizes: Float[Tensor, " g"]
) -> Float[Tensor, "g k"]:
    """``n_g - ζ_gᵀ A_g ζ_g`` of each group and draw."""
    return sizes[:, None] - by_group(prior.to(zeta)[:, None] * zeta.square(), group, len(sizes))


def output_squares(
    problem: Problem, draws: Float[Tensor, "d k"], group: Int[Tensor, " d"], groups: int
) -> Float[Tensor, "g k"]:
    """``ζ_gᵀ (G ζ)_g`` of each group of weights and draw, float64; a product with G."""
    with torch.no_grad():
        g_zeta = problem.curvature @ draws
        return by_group(wide(draws) * wide(g_zeta), group, groups)


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
    mostly_determined = outputs.mean(1) > 0.5 * sizes
    samples = outputs.shape[1]
    if samples == 1:
        return mostly_determined
    log_ratio = (weights.var(1) / outputs.var(1)).log()
    beyond_chance = log_ratio.abs() > 4 / math.sqrt(samples - 1)
    return torch.where(beyond_chance, log_ratio < 0, mostly_determined)
