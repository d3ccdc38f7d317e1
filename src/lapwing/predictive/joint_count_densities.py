"""Densities of several counts together whose rates are uncertain: importance sampling about the likeliest log rates."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.precision import wide_like
from lapwing.predictive.count_densities import BUDGET, LogProbGiven
from lapwing.predictive.quadrature import sobol_normals

STEPS = 200
"""Most of Newton's steps."""

LONGEST_STEP = 0.5
"""Of one of them in a log rate: within it the curvature changes by less than a factor of two, so that it goes up."""

CLOSE = 1e-9
"""Step in a log rate below which the likeliest is found."""

WIDER = 2.0
"""Times that a quarter of the points are spread out as the Gaussian about the mode."""

APART = 1e-3
"""Distance of log rates by whose differences slopes and curvatures are found; they but place the points."""


def log_density_together(
    counts: Float[Tensor, "m c"],
    mean: Float[Tensor, "m c"],
    root: Float[Tensor, "m c r"],
    log_prob_given: LogProbGiven,
    *,
    points: int,
    max_bytes: int = BUDGET,
) -> Float[Tensor, " m"]:
    """``log E P(y | f)`` for ``f = m + R z``, of the counts of each position together, to about a hundredth of a nat.

        E P(y | f) ≈ 1/S Σ_s P(y | m + R z_s) φ(z_s) / q(z_s),    q = ¼ φ + ½ N(z*, H⁻¹) + ¼ N(z*, 4 H⁻¹)

    with z* the mode of ``P(y | m + R z) φ(z)`` and H the negative Hessian of its logarithm there. The quasi-random
    points z_s are of each part of q in turn: of the prior φ, so that no weight is above 4, of the Gaussian about the
    mode, since counts that determine their rates far better than the prior leave hardly a point of the prior where it
    counts, and of one twice as wide, for what is skewed.

    Args:
        counts: y, float64.
        mean: m, float64.
        root: R, float64.
        log_prob_given: ``log P(y | f)``, concave in f.
        points: S, a power of two.
        max_bytes: What the values of some positions at all points may take.

    Cost:
        S of ``log P(y | f)`` a position, and three for each of Newton's steps, with a Cholesky factor of r × r.

    Source: A. Owen and Y. Zhou, Safe and effective importance sampling, 2000.
    """
    if not root.shape[-1]:
        return log_prob_given(counts, mean).sum(-1)
    normals = sobol_normals(points, root.shape[-1]).to(mean)
    step = max(1, max_bytes // (8 * 3 * points * max(root.shape[-2:])))
    pieces = zip(counts.split(step), mean.split(step), root.split(step), strict=True)
    return torch.cat([_averaged(y, m, some, log_prob_given, normals) for y, m, some in pieces])


def _averaged(
    counts: Float[Tensor, "m c"],
    mean: Float[Tensor, "m c"],
    root: Float[Tensor, "m c r"],
    log_prob_given: LogProbGiven,
    normals: Float[Tensor, "r k"],
) -> Float[Tensor, " m"]:
    """The average of some positions."""
    with torch.no_grad():
        mode, factor = _likeliest(counts, mean, root, log_prob_given)
        of_prior, *others, of_wide = normals.chunk(4, -1)
        about_mode = torch.cat([*others, WIDER * of_wide], -1).expand(len(mode), -1, -1)
        moved = torch.linalg.solve_triangular(factor.mT, about_mode, upper=True)
        centre = mode[..., None]
        z = torch.cat([of_prior.expand(len(mode), -1, -1), centre + moved], -1)
        log_prior = -0.5 * z.square().sum(1)
        distances = (factor.mT @ (z - centre)).square().sum(1)
        log_volume = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1, keepdim=True)
        log_narrow = log_volume - 0.5 * distances
        log_wide = log_volume - z.shape[1] * math.log(WIDER) - 0.5 * distances / WIDER**2
        parts = [log_prior, math.log(2) + log_narrow, log_wide]
        log_weights = log_prior - torch.stack(parts).logsumexp(0) + math.log(4)
    log_rates = mean + (root @ z).movedim(-1, 0)
    values = log_prob_given(counts, log_rates).sum(-1)
    return torch.logsumexp(values + log_weights.mT, 0) - math.log(len(values))


def _likeliest(
    counts: Float[Tensor, "m c"],
    mean: Float[Tensor, "m c"],
    root: Float[Tensor, "m c r"],
    log_prob_given: LogProbGiven,
) -> tuple[Float[Tensor, "m r"], Float[Tensor, "m r r"]]:
    """The mode of each position by Newton's method, and the Cholesky factor of H there; 0 and 1 where there is none."""
    mode = root.new_zeros(len(mean), root.shape[-1])
    nothing = torch.eye(root.shape[-1], **wide_like(root)).expand(len(mean), -1, -1)
    factor = nothing
    moving = torch.ones(len(mean), dtype=torch.bool, device=mean.device)
    for _ in range(STEPS):
        log_rates = mean + (root @ mode[..., None])[..., 0]
        below, here, above = log_prob_given(counts, log_rates + APART * _around(log_rates))
        slope = (above - below) / (2 * APART)
        curvature = ((2 * here - above - below) / APART**2).clamp_min(0.0)
        hessian = nothing + root.mT @ (curvature[..., None] * root)
        found, failed = torch.linalg.cholesky_ex(hessian)
        uphill = (root.mT @ slope[..., None])[..., 0] - mode
        step = torch.cholesky_solve(uphill[..., None], found)[..., 0]
        moved = (root @ step[..., None]).abs().amax((-2, -1))
        usable = (failed == 0) & moved.isfinite()
        mode = mode.where((usable | ~moving)[:, None], 0.0)
        factor = torch.where(moving[:, None, None], found.where(usable[:, None, None], nothing), factor)
        moving = moving & usable & (moved > CLOSE)
        if not moving.any():
            break
        mode = torch.where(moving[:, None], mode + step * (LONGEST_STEP / moved).clamp_max(1.0)[:, None], mode)
    return mode, factor


def _around(log_rates: Float[Tensor, "m c"]) -> Float[Tensor, "3 1 1"]:
    """-1, 0 and 1, before the axes of log rates."""
    return torch.arange(-1, 2).to(log_rates)[:, None, None]
