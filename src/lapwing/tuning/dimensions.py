"""How many directions of each group of weights the data determined: exactly, or by draws from the posterior."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lapwing.posteriors.draws import Estimator
from lapwing.problem import Problem

LEAST = 0.01
"""Fewest directions an estimate is taken to say that the data determined, or left undetermined, in a group."""


@final
@dataclass(frozen=True, eq=False)
class Dimensions:
    """Effective dimensions of groups of weights.

    Args:
        groups: ``γ_g`` of each group.
        errors: Standard error of each; 0 where it is exact, or known from a single draw.
        error: Standard error of their sum.
    """

    groups: Float[Tensor, " g"]
    errors: Float[Tensor, " g"]
    error: float

    @classmethod
    def exact(cls, groups: Float[Tensor, " g"]) -> Dimensions:
        """Dimensions without an error."""
        return cls(groups, torch.zeros_like(groups), 0.0)


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
    ``2 (n - 2 γ)``. ``"auto"`` takes for each group the one that varied less from draw to draw, by more than chance
    would have it; else the first if it says that less than half were determined.

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
        >>> problem = Problem.of_rows(torch.tensor([[1.0, 0.0]]), Diagonal(torch.ones(2)))
        >>> draws = torch.tensor([[1.0, -0.5], [1.0, 1.0]])
        >>> by_draws(problem, draws, torch.tensor([0, 1]), torch.ones(2)).groups.tolist()
        [0.375, 0.01]
    """
    zeta = draws.double()
    sizes = sizes.to(zeta)

    def by_group(values: Float[Tensor, "d k"]) -> Float[Tensor, "g k"]:
        return values.new_zeros(len(sizes), values.shape[1]).index_add(0, group.to(values.device), values)

    values: list[Tensor] = []
    if estimator != "weights":
        with torch.no_grad():
            values.append(problem.scale * by_group(zeta * (problem.curvature @ draws).double()))
    if estimator != "outputs":
        values.append(sizes[:, None] - by_group(problem.prior.values.double()[:, None] * zeta.square()))
    each = values[0]
    if len(values) > 1:
        each = torch.where(weights_are_better(values[0], values[1], sizes)[:, None], values[1], values[0])
    gamma = torch.minimum(each.mean(1).clamp_min(LEAST), (sizes - LEAST).clamp_min(LEAST))
    samples = each.shape[1]
    if samples == 1:
        return Dimensions.exact(gamma)
    return Dimensions(gamma, each.std(1) / samples**0.5, float(each.sum(0).std()) / samples**0.5)


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
