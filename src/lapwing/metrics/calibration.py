"""Calibration: does a confidence of 80 % mean right in 80 % of cases?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.errors import ConfigError
from lapwing.metrics.elements import elements, ranked, top


@final
@dataclass(frozen=True, eq=False)
class Reliability:
    """Confidence against accuracy, bin by bin; empty bins hold 0.

    Args:
        edges: Limits of the bins in confidence, shape ``[b + 1]``.
        confidence: Mean confidence of each bin, shape ``[b]``.
        accuracy: Share of correct labels in each bin, shape ``[b]``.
        count: Examples in each bin, shape ``[b]``.
    """

    edges: Float[Tensor, " edges"]
    confidence: Float[Tensor, " b"]
    accuracy: Float[Tensor, " b"]
    count: Int[Tensor, " b"]

    @property
    def error(self) -> float:
        """Expected calibration error: Σ_b (n_b / n) |acc_b - conf_b|."""
        gap = (self.accuracy - self.confidence).abs()
        return float((gap * self.count).sum() / self.count.sum())


def reliability(probs: Float[Tensor, "*n c"], targets: Tensor, bins: int = 15) -> Reliability:
    """The numbers of a reliability diagram; their ``error`` is the ECE.

    Args:
        probs: Class probabilities.
        targets: Labels ``[*n]``; -100 is ignored.
        bins: Number of equal-width bins, each open at its lower limit.

    Returns:
        Mean confidence, accuracy and count of each bin.

    Raises:
        ShapeError: The shapes do not match.
        DataError: Nothing to score, or not probabilities, or labels outside the classes.
        ConfigError: Fewer than one bin.

    Example:
        >>> reliability(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]), bins=2).count.tolist()
        [0, 2]
    """
    _check_bins(bins)
    confidence, correct = top(*elements(probs, targets))
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=probs.device)
    index = torch.bucketize(confidence, edges[1:-1])
    count = torch.bincount(index, minlength=bins)
    mean_confidence, mean_accuracy = (
        torch.zeros_like(edges[1:]).index_add_(0, index, values) / count.clamp(min=1)
        for values in (confidence, correct)
    )
    return Reliability(edges, mean_confidence, mean_accuracy, count)


def ece(probs: Float[Tensor, "*n c"], targets: Tensor, bins: int = 15) -> float:
    """Expected calibration error over bins of equal width (Guo et al. 2017, eq. 3).

    Σ_b (n_b / n) |acc_b - conf_b|, with bins ((b - 1)/B, b/B] in the confidence: the probability of the most
    probable class.

    Args:
        probs: Class probabilities.
        targets: Labels ``[*n]``; -100 is ignored.
        bins: Number of bins B.

    Returns:
        A number in [0, 1].

    Raises:
        ShapeError: The shapes do not match.
        DataError: Nothing to score, or not probabilities, or labels outside the classes.
        ConfigError: Fewer than one bin.

    Example:
        >>> round(ece(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1])), 4)
        0.35
    """
    return reliability(probs, targets, bins).error


def adaptive_ece(probs: Float[Tensor, "*n c"], targets: Tensor, bins: int = 15) -> float:
    """Expected calibration error over bins of equally many examples (Nguyen & O'Connor 2015).

    Examples of equal confidence share their mean accuracy, so the order of the data does not matter.

    Args:
        probs: Class probabilities.
        targets: Labels ``[*n]``; -100 is ignored.
        bins: Number of bins; their sizes differ by one example at most.

    Returns:
        A number in [0, 1].

    Raises:
        ShapeError: The shapes do not match.
        DataError: Nothing to score, or not probabilities, or labels outside the classes.
        ConfigError: Fewer than one bin.

    Example:
        >>> round(adaptive_ece(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]), bins=1), 4)
        0.25
    """
    _check_bins(bins)
    confidence, correct = ranked(*elements(probs, targets))
    gaps = torch.tensor_split(correct - confidence, bins)
    return float(torch.stack([gap.sum().abs() for gap in gaps]).sum() / confidence.numel())


def _check_bins(bins: int) -> None:
    if bins < 1:
        raise ConfigError("at least one bin", f"bins={bins}", "bins=15")
