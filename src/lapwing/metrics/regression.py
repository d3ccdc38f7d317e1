"""Scores of Gaussian predictions of real numbers, and how far one Gaussian is from another."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data.checks import check_finite
from lapwing.ground.errors import ConfigError, DataError, ShapeError, check_fraction, check_kind, is_number
from lapwing.ground.precision import wide, wide_device
from lapwing.metrics.elements import check_all_positive, scalars
from lapwing.moments import Draws, Moments
from lapwing.moments.rounding import clamp_rounding


def rmse(mean: Float[Tensor, "*n"], targets: Tensor) -> float:
    """Root mean squared error, in the unit of the targets.

    Args:
        mean: Predictive means.
        targets: Observations of the same shape.

    Returns:
        √(mean of (mean - targets)²).

    Raises:
        ShapeError: The shapes differ.
        DataError: Empty or not finite.

    Example:
        >>> import torch
        >>> round(rmse(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 3.0])), 4)
        1.4142
    """
    m, y = scalars(mean=mean, targets=targets)
    return float((m - y).square().mean().sqrt())


def gaussian_nll(mean: Float[Tensor, "*n"], variance: Tensor, targets: Tensor) -> float:
    """Mean negative log density of the targets under N(mean, variance), in nats a scalar.

    Args:
        mean: Predictive means.
        variance: Predictive variances, observation noise included, of the same shape.
        targets: Observations of the same shape.

    Returns:
        Mean of log(2π v)/2 + (y - m)² / (2 v).

    Raises:
        ShapeError: The shapes differ.
        DataError: Empty, not finite, or a variance that is not positive.

    Example:
        >>> import torch
        >>> round(gaussian_nll(torch.zeros(2), torch.ones(2), torch.zeros(2)), 4)
        0.9189
    """
    m, v, y = scalars(mean=mean, variance=variance, targets=targets)
    check_all_positive("variance", v)
    return float((0.5 * (2 * math.pi * v).log() + (y - m).square() / (2 * v)).mean())


def crps(mean: Float[Tensor, "*n"], std: Tensor, targets: Tensor) -> float:
    """Mean continuous ranked probability score of N(mean, std²), in the unit of the targets.

    The mean of s (w (2 Φ(w) - 1) + 2 φ(w) - 1/√π) with w = (y - m)/s (Gneiting et al. 2005, equation 5).

    Args:
        mean: Predictive means.
        std: Predictive standard deviations, observation noise included, of the same shape.
        targets: Observations of the same shape.

    Returns:
        A number >= 0; lower is better.

    Raises:
        ShapeError: The shapes differ.
        DataError: Empty, not finite, or a standard deviation that is not positive.

    Example:
        >>> import torch
        >>> round(crps(torch.zeros(1), torch.ones(1), torch.zeros(1)), 4)
        0.2337
    """
    m, s, y = scalars(mean=mean, std=std, targets=targets)
    check_all_positive("std", s)
    w = (y - m) / s
    density = (-0.5 * w.square()).exp() / math.sqrt(2 * math.pi)
    return float(((y - m) * torch.erf(w / math.sqrt(2)) + s * (2 * density - 1 / math.sqrt(math.pi))).mean())


def picp(low: Float[Tensor, "*n"], high: Tensor, targets: Tensor) -> float:
    """Prediction interval coverage: the share of targets in [low, high].

    Args:
        low: Lower limits.
        high: Upper limits of the same shape.
        targets: Observations of the same shape.

    Returns:
        A number in [0, 1], to be compared with the level of the interval.

    Raises:
        ShapeError: The shapes differ.
        DataError: Empty, not finite, or a lower limit above its upper one.

    Example:
        >>> import torch
        >>> picp(torch.zeros(4), torch.ones(4), torch.tensor([0.0, 0.5, 1.0, 2.0]))
        0.75
    """
    lower, upper, y = _interval(low, high, targets)
    return float(wide((lower <= y) & (y <= upper)).mean())


def interval_score(low: Float[Tensor, "*n"], high: Tensor, targets: Tensor, level: float = 0.95) -> float:
    """Mean interval score, width plus a fine for what lies outside (Gneiting and Raftery 2007, equation 43).

        (u - l) + 2/α (l - y)₊ + 2/α (y - u)₊,    α = 1 - level

    Its expectation is least for the interval between the α/2 and 1 - α/2 quantiles: narrow, and right.

    Args:
        low: Lower limits.
        high: Upper limits of the same shape.
        targets: Observations of the same shape.
        level: Probability of the central interval.

    Returns:
        A number >= 0 in the unit of the targets, lower is better.

    Raises:
        ConfigError: The level is not between 0 and 1.
        ShapeError: The shapes differ.
        DataError: Empty, not finite, or a lower limit above its upper one.

    Example:
        >>> import torch
        >>> interval_score(torch.zeros(2), torch.ones(2), torch.tensor([0.5, 1.5]), level=0.5)
        2.0
    """
    check_fraction("level", level, "level=0.95")
    lower, upper, y = _interval(low, high, targets)
    outside = (lower - y).clamp_min(0.0) + (y - upper).clamp_min(0.0)
    return float((upper - lower + 2.0 / (1.0 - level) * outside).mean())


def interval_width(low: Float[Tensor, "*n"], high: Tensor) -> float:
    """Mean width of intervals, in the unit of the targets: of two that cover as many, the narrower is better.

    Arguments and errors as of ``picp``.
    """
    lower, upper, _ = _interval(low, high, low)
    return float((upper - lower).mean())


def _interval(low: Tensor, high: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Limits and targets in float64, checked."""
    lower, upper, y = scalars(low=low, high=high, targets=targets)
    if (lower > upper).any():
        got = f"{int((lower > upper).sum())} intervals with low above high"
        raise DataError("intervals with low <= high", got, "low, high and targets, in this order")
    return lower, upper, y


def gaussian_symmetric_kl(moments: Moments, reference: Moments, *, floor: float = 1e-6) -> Float[Tensor, "*batch"]:
    """Symmetric Kullback-Leibler divergence ½ KL(p ‖ q) + ½ KL(q ‖ p) at each position, in nats.

    With W Wᵀ = (Σ_p + Σ_q)⁻¹, δ the eigenvalues of Wᵀ(Σ_p - Σ_q)W in [-1, 1] with eigenvectors U, and
    m = UᵀWᵀ(μ_p - μ_q), it is Σ_i (δ_i² + m_i²) / (1 - δ_i²): no inverse, no log-determinant, nothing cancels.

    Between singular Gaussians it may be infinite. The rule: in no direction is a variance taken for less than
    ``floor`` times the sum of both there, nor for less than ``floor`` times the largest variance of Σ_p + Σ_q. So a
    direction in which one varies and the other does not costs 1 / (4 floor (1 - floor)) - 1 nats, and one in which
    neither varies counts by its means alone.

    Args:
        moments: Gaussian outputs, mean ``[n, *event, c]`` and covariance ``[n, *event, c, c]``.
        reference: Others of the same shape; the two may be exchanged.
        floor: Smallest relative variance, above 0 and below ½. Rounding of float32 covariances needs about 1e-6.

    Returns:
        Float64 ``[n, *event]``; ``.mean()`` for one number. Infinite where neither varies at all and the means differ.

    Raises:
        ShapeError: The shapes differ.
        DataError: A number is not finite.
        NumericalError: A covariance is not positive semi-definite.
        ConfigError: A floor outside (0, ½).

    Cost: four eigendecompositions c × c a position.

    Example:
        >>> wide, narrow = (Moments(torch.zeros(1, 1), torch.full((1, 1, 1), v)) for v in (4.0, 1.0))
        >>> gaussian_symmetric_kl(wide, narrow)
        tensor([0.5625], dtype=torch.float64)
    """
    if not (is_number(floor) and 0 < floor < 0.5):
        raise ConfigError("a floor above 0 and below 0.5", f"floor={floor}", "floor=1e-6")
    difference, (first, second) = _pair(moments, reference)
    for covariance, given in ((first, moments), (second, reference)):
        clamp_rounding(torch.linalg.eigvalsh(covariance), "eigenvalue", given.covariance.dtype)
    values, vectors = torch.linalg.eigh(first + second)
    largest = values[..., -1:]
    least = (2 * floor * largest).clamp(min=torch.finfo(values.dtype).tiny)
    whiten = vectors * values.maximum(least).rsqrt().unsqueeze(-2)
    inside = whiten.masked_fill((values <= least).unsqueeze(-2), 0.0)
    delta, turn = torch.linalg.eigh(inside.mT @ (first - second) @ inside)
    spread = delta.clamp(2 * floor - 1, 1 - 2 * floor).square()
    shift = (difference @ whiten @ turn).squeeze(-2).square()
    divergence = ((spread + shift) / (1 - spread)).sum(-1)
    apart = (difference != 0).flatten(-2).any(-1)
    return torch.where((largest.squeeze(-1) <= 0) & apart, torch.inf, divergence)


def gaussian_wasserstein(moments: Moments, reference: Moments) -> Float[Tensor, "*batch"]:
    """Wasserstein-2 distance W₂ between Gaussians at each position, in the unit of the outputs.

        W₂² = |μ₁ - μ₂|² + tr(Σ₁ + Σ₂ - 2 (Σ₂^½ Σ₁ Σ₂^½)^½)    (Dowson and Landau 1982; Gelbrich 1990)
            = |μ₁ - μ₂|² + |R₁ - R₂Q|²

    with roots R Rᵀ = Σ and the rotation Q that brings them closest. The second is computed: nothing cancels where the
    two are close. Covariances may be singular, and 0.

    Args:
        moments: Gaussian outputs, mean ``[n, *event, c]`` and covariance ``[n, *event, c, c]``.
        reference: Others of the same shape; the two may be exchanged.

    Returns:
        W₂, not its square, in float64 ``[n, *event]``; ``.mean()`` for one number.

    Raises:
        ShapeError: The shapes differ.
        DataError: A number is not finite.
        NumericalError: A covariance is not positive semi-definite.

    Cost: two eigendecompositions and a singular value decomposition c × c a position.

    Example:
        >>> wide, narrow = (Moments(torch.zeros(1, 2), v * torch.eye(2)[None]) for v in (9.0, 1.0))
        >>> gaussian_wasserstein(wide, narrow)
        tensor([2.8284], dtype=torch.float64)
    """
    difference, (one, other) = _pair(moments, reference)
    first = _root(one, moments.covariance.dtype)
    second = _root(other, reference.covariance.dtype)
    left, _, right = torch.linalg.svd(second.mT @ first)
    gap = first - second @ (left @ right)
    return (difference.square().sum((-2, -1)) + gap.square().sum((-2, -1))).sqrt()


def _pair(moments: Moments, reference: Moments) -> tuple[Float[Tensor, "*b 1 c"], tuple[Tensor, Tensor]]:
    """Difference of the means as a row, and both covariances, symmetric, in float64."""
    for name, value in (("moments", moments), ("reference", reference)):
        check_kind(name, value, (Moments, Draws), "posterior.predict(x).logits or .outputs, and .marginal() if joint")
    shape = list(moments.mean.shape)
    other = list(reference.mean.shape)
    if shape != other:
        raise ShapeError(f"moments of the shape of the reference, {other}", f"{shape}", "both at the same inputs")
    device = wide_device(moments.mean.device)
    symmetric: list[Tensor] = []
    for each in (moments, reference):
        check_finite(each.mean, "means", "checking the inputs and the weights of the network")
        check_finite(each.covariance, "covariances", "float64, or a larger prior precision")
        exact = wide(each.covariance.detach()).to(device)
        symmetric.append(0.5 * (exact + exact.mT))
    difference = wide(moments.mean.detach()) - wide(reference.mean.detach()).to(device)
    return difference.unsqueeze(-2), (symmetric[0], symmetric[1])


def _root(covariance: Float[Tensor, "*b c c"], dtype: torch.dtype) -> Float[Tensor, "*b c c"]:
    """R with R Rᵀ = covariance, which was computed in ``dtype``."""
    values, vectors = torch.linalg.eigh(covariance)
    return vectors * clamp_rounding(values, "eigenvalue", dtype).sqrt().unsqueeze(-2)
