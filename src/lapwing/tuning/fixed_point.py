"""MacKay's fixed point: one step to it, and how far it still is."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.tuning.hyperparameters import BOUNDS, Hyperparameters

SLOWEST = 0.95
"""Largest factor by which moves are taken to shrink from step to step."""


def fixed_point(
    gamma: Float[Tensor, " g"],
    norms: Float[Tensor, " g"],
    misfit: Float[Tensor, ""],
    scale: Float[Tensor, ""],
    observations: float,
    with_noise: bool,
) -> Hyperparameters:
    """MacKay's step: ``α_g = γ_g / |w_g|²``, ``s = (N - γ) / misfit`` (MacKay 1992, equations 4.9 and 4.10).

    Where γ is more than half of the N observations that s overshoots, and turns negative beyond N; the step of
    expectation maximisation, ``s = N / (misfit + γ / s₀)``, takes its place: the fixed point is the same.

    Args:
        gamma: Effective dimension ``γ_g`` of each group, exact or an estimate.
        norms: ``|w_g|²``.
        misfit: Weighted squared error at s = 1.
        scale: s₀.
        observations: Scalar observations N.
        with_noise: Whether the noise may change.
    """
    least = torch.finfo(torch.float64).tiny
    alpha = (gamma / norms.clamp_min(least)).clamp(*BOUNDS)
    if not with_noise:
        return Hyperparameters(alpha, scale)
    total = gamma.sum()
    if total > 0.5 * observations:
        s = (observations / (misfit + total / scale)).clamp(*BOUNDS)
    else:
        s = ((observations - total) / misfit.clamp_min(least)).clamp(*BOUNDS)
    return Hyperparameters(alpha, s)


def distance(moves: Float[Tensor, " m"], before: Float[Tensor, " m"] | None) -> Float[Tensor, " m"]:
    """How far the fixed point is, if moves go on shrinking by the factor ρ by which they last did.

    ``|move| / (1 - ρ)`` where a precision goes on in the same direction, and ``|move| / (1 + ρ)`` where it turned back:
    the fixed point then lies between the two.

    Args:
        moves: The moves of this step.
        before: Those of the step before, where there was one; ρ is the ratio of the largest.

    Example:
        >>> distance(torch.tensor([0.5, 0.5]), torch.tensor([1.0, -1.0])).round(decimals=2)
        tensor([1.0000, 0.3300])
    """
    sizes = moves.abs()
    if before is None:
        return sizes
    shrunk = float(sizes.max() / before.abs().max())
    turned_back = (moves * before < 0) & (shrunk < SLOWEST)
    direction = torch.where(turned_back, -1.0, 1.0).to(sizes)
    return sizes / (1.0 - min(shrunk, SLOWEST) * direction)
