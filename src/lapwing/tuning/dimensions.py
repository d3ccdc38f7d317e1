"""How many directions of each group of weights the data determined: exactly, or by draws from the posterior."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.linear.problem import Problem
from lapwing.posteriors.dimension import Dimensions, Estimator, by_group


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
        >>> problem = Problem.of_rows(torch.tensor([[1.0, 0.0]]), Diagonal(torch.ones(2)))
        >>> draws = torch.tensor([[1.0, -0.5], [1.0, 1.0]])
        >>> by_draws(problem, draws, torch.tensor([0, 1]), torch.ones(2)).groups.tolist()
        [0.375, 0.01]
    """
    zeta = draws.double()
    sizes = sizes.to(zeta)
    outputs = weights = None
    if estimator != "weights":
        with torch.no_grad():
            outputs = problem.scale * by_group(zeta * (problem.curvature @ draws).double(), group, len(sizes))
    if estimator != "outputs":
        weights = sizes[:, None] - by_group(problem.prior.values.double()[:, None] * zeta.square(), group, len(sizes))
    return Dimensions.told(outputs, weights, sizes)
