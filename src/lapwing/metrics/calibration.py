"""Calibration: does a confidence of 80 % mean right in 80 % of cases?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.errors import check_count
from lapwing.ground.precision import wide, wide_like
from lapwing.metrics.elements import elements, ranked, scalars, top

FLOOR_DRAWS = 100


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
        """Expected calibration error: ``Σ_b (n_b / n) |acc_b - conf_b|``."""
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
    confidence, correct, edges, index = _binned(probs, targets, bins)
    count = torch.bincount(index, minlength=bins)
    mean_confidence, mean_accuracy = (
        torch.zeros_like(edges[1:]).index_add_(0, index, values) / count.clamp(min=1)
        for values in (confidence, correct)
    )
    return Reliability(edges, mean_confidence, mean_accuracy, count)


def ece(probs: Float[Tensor, "*n c"], targets: Tensor, bins: int = 15) -> float:
    """Expected calibration error over bins of equal width (Guo et al. 2017, eq. 3).

    ``Σ_b (n_b / n) |acc_b - conf_b|``, with bins ((b - 1)/B, b/B] in the confidence: the probability of the most
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


def ece_floor(probs: Float[Tensor, "*n c"], targets: Tensor, bins: int = 15) -> float:
    """The ECE that a perfectly calibrated predictor of the same confidences has on so many examples, on average.

    ``E Σ_b (1/n) |Σ_{i in b} (y_i - conf_i)|`` where y_i is 1 with probability conf_i: bins of few examples never hold
    quite their share of correct labels (Bröcker and Smith 2007, "Increasing the reliability of reliability diagrams").
    The mean over a hundred draws of the labels, the same at every call; its standard error is some percent.

    Args:
        probs: Class probabilities.
        targets: Labels ``[*n]``, to tell which are ignored.
        bins: Number of equal-width bins.

    Returns:
        A number in [0, 1]; an ECE near it shows no miscalibration.

    Raises:
        ShapeError: The shapes do not match.
        DataError: Nothing to score, or not probabilities, or labels outside the classes.
        ConfigError: Fewer than one bin.

    Example:
        >>> probs = torch.tensor([[0.75, 0.25]]).expand(1000, 2)
        >>> round(ece_floor(probs, torch.zeros(1000, dtype=torch.long)), 3)
        0.01
    """
    confidence, _, _, index = (part.cpu() for part in _binned(probs, targets, bins))
    generator = torch.Generator().manual_seed(0)
    total = 0.0
    for _ in range(FLOOR_DRAWS):
        correct = torch.rand(confidence.shape, generator=generator, dtype=torch.float64, device="cpu") < confidence
        gaps = torch.zeros(bins, dtype=torch.float64, device="cpu")
        gaps.index_add_(0, index, wide(correct) - confidence)
        total += float(gaps.abs().sum())
    return total / (FLOOR_DRAWS * confidence.numel())


def debiased_ece(probs: Float[Tensor, "*n c"], targets: Tensor, bins: int = 15) -> float:
    """Root of the mean squared gap between accuracy and confidence, without what chance adds to it.

    ``√(Σ_b (n_b / n) [(acc_b - conf_b)² - acc_b (1 - acc_b) / (n_b - 1)])`` over the bins of ``ece`` (Kumar, Liang and
    Ma 2019, "Verified uncertainty calibration", section 5): the square is unbiased, so a calibrated predictor has 0 on
    average however few examples there are. Below 0 the root of its size is taken, with a minus. Bins of one example
    say nothing of their accuracy and are left out.

    Args:
        probs: Class probabilities.
        targets: Labels ``[*n]``; -100 is ignored.
        bins: Number of equal-width bins.

    Returns:
        A number in [-1, 1]; at least as large as an ECE without bias, for its gaps are squared.

    Raises:
        ShapeError: The shapes do not match.
        DataError: Nothing to score, or not probabilities, or labels outside the classes.
        ConfigError: Fewer than one bin.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1]]).expand(10, 2)
        >>> labels = torch.tensor([0, 0, 0, 0, 0, 0, 0, 1, 1, 1])
        >>> round(ece(probs, labels), 3), round(debiased_ece(probs, labels), 3)
        (0.2, 0.129)
    """
    found = reliability(probs, targets, bins)
    several = found.count > 1
    chance = found.accuracy * (1 - found.accuracy) / (found.count - 1).clamp(min=1)
    squares = ((found.accuracy - found.confidence).square() - chance) * found.count
    mean = float(squares[several].sum() / found.count[several].sum().clamp(min=1))
    return math.copysign(math.sqrt(abs(mean)), mean)


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
    check_count("bins", bins, usual=15)
    confidence, correct = ranked(*elements(probs, targets))
    gaps = torch.tensor_split(correct - confidence, bins)
    return float(torch.stack([gap.sum().abs() for gap in gaps]).sum() / confidence.numel())


@final
@dataclass(frozen=True, eq=False)
class EqualMass:
    """Confidence against accuracy in bins of equally many examples, with the interval of each accuracy.

    Args:
        confidence: Mean confidence of each bin, shape ``[b]``.
        accuracy: Share of correct labels in each bin.
        low: Lower end of its 95 % interval.
        high: Upper end.
        count: Examples in each bin.
    """

    confidence: Float[Tensor, " b"]
    accuracy: Float[Tensor, " b"]
    low: Float[Tensor, " b"]
    high: Float[Tensor, " b"]
    count: Int[Tensor, " b"]


def equal_mass(confidence: Float[Tensor, " m"], correct: Tensor, bins: int = 10) -> EqualMass:
    """Accuracy in bins of equally many examples, with binomial intervals of 95 %.

    The interval is that of Wilson (1927), of the k right ones of n with z = 1.96:

        (k/n + z²/2n ± z √(k/n (1 - k/n)/n + z²/4n²)) / (1 + z²/n)

    Args:
        confidence: Largest probability of each example.
        correct: Whether its class was the label, 1 or 0.
        bins: Number of bins; their sizes differ by one example at most.

    Raises:
        ShapeError: The shapes do not match.
        DataError: Nothing to score.
        ConfigError: Fewer than one bin.

    Example:
        >>> found = equal_mass(torch.tensor([0.6, 0.7, 0.8, 0.9]), torch.tensor([0.0, 1.0, 1.0, 1.0]), bins=2)
        >>> found.accuracy.tolist(), [round(float(low), 3) for low in found.low]
        ([0.5, 1.0], [0.095, 0.342])
    """
    check_count("bins", bins, usual=10)
    sure, right = scalars(confidence=confidence, correct=wide(correct))
    order = sure.argsort()
    parts = [part for part in order.tensor_split(bins) if len(part)]
    count = torch.tensor([len(part) for part in parts], device=sure.device)
    mean_confidence = torch.stack([sure[part].mean() for part in parts])
    p = torch.stack([right[part].mean() for part in parts])
    z = 1.96
    shrink = 1 + z**2 / count
    centre = (p + z**2 / (2 * count)) / shrink
    half = z * (p * (1 - p) / count + z**2 / (4 * count**2)).sqrt() / shrink
    low = torch.minimum(centre - half, p).clamp_min(0.0)  # of all right ones the interval ends at 1 but for rounding
    high = torch.maximum(centre + half, p).clamp_max(1.0)
    return EqualMass(mean_confidence, p, low, high, count)


def _binned(probs: Tensor, targets: Tensor, bins: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Confidence of each element, whether it was right, the edges of bins of equal width, and the bin of each."""
    check_count("bins", bins, usual=15)
    confidence, correct = top(*elements(probs, targets))
    edges = torch.linspace(0, 1, bins + 1, **wide_like(probs))
    return confidence, correct, edges, torch.bucketize(confidence, edges[1:-1])
