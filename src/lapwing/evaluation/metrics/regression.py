"""Scores of Gaussian predictions of real numbers."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.evaluation.metrics.elements import check_all_positive, scalars
from lapwing.ground.errors import DataError


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
    lower, upper, y = scalars(low=low, high=high, targets=targets)
    if (lower > upper).any():
        got = f"{int((lower > upper).sum())} intervals with low above high"
        raise DataError("intervals with low <= high", got, "picp(low, high, targets), in this order")
    return float(((lower <= y) & (y <= upper)).double().mean())
