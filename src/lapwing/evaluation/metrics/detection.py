"""What an uncertainty is for: finding what is foreign, and giving up what is probably wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.evaluation.metrics.elements import elements, ranked
from lapwing.ground.errors import DataError


def auroc(in_scores: Float[Tensor, "*n"], out_scores: Float[Tensor, "*m"]) -> float:
    """Probability that an out-of-distribution score exceeds an in-distribution one; a tie counts half.

    The area under the ROC curve as the Mann-Whitney statistic: exact, and unchanged by any increasing
    function of the scores.

    Args:
        in_scores: Scores of in-distribution examples, higher = more foreign (entropy, variance, -confidence).
        out_scores: Scores of out-of-distribution examples.

    Returns:
        A number in [0, 1]; 0.5 where the scores say nothing.

    Raises:
        DataError: A side is empty or has a NaN.

    Example:
        >>> auroc(torch.tensor([0.1, 0.2]), torch.tensor([0.2, 3.0]))
        0.875
    """
    for name, scores in (("in_scores", in_scores), ("out_scores", out_scores)):
        if scores.numel() == 0 or scores.isnan().any():
            got = "none" if scores.numel() == 0 else f"{int(scores.isnan().sum())} NaN"
            raise DataError(f"{name} of at least one example, without NaN", got, "checking the predictions")
    low = in_scores.detach().flatten().double().sort().values
    high = out_scores.detach().flatten().to(low)
    below = torch.searchsorted(low, high) + torch.searchsorted(low, high, right=True)
    return float(below.double().mean() / (2 * low.numel()))


@final
@dataclass(frozen=True, eq=False)
class RejectionCurve:
    """Accuracy of what is kept when the least confident examples are rejected.

    Args:
        fraction: Fraction of the examples rejected, 0 to 1 - 1/n, shape ``[n]``.
        accuracy: Accuracy of the others, shape ``[n]``.
    """

    fraction: Float[Tensor, " n"]
    accuracy: Float[Tensor, " n"]

    @property
    def area(self) -> float:
        """Area under the curve, the mean accuracy over fractions; 1 - AURC of Geifman et al. (2019)."""
        return float(self.accuracy.mean())


def rejection_curve(probs: Float[Tensor, "*n c"], targets: Tensor) -> RejectionCurve:
    """Accuracy of the examples kept as the least confident ones are rejected, one by one.

    Examples of equal confidence share their mean accuracy, so the order of the data does not matter.

    Args:
        probs: Class probabilities.
        targets: Labels ``[*n]``; -100 is ignored.

    Returns:
        One point for each number of rejected examples, 0 to n - 1.

    Raises:
        ShapeError: The shapes do not match.
        DataError: Nothing to score, or not probabilities, or labels outside the classes.

    Example:
        >>> curve = rejection_curve(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        >>> curve.fraction.tolist(), curve.accuracy.tolist(), curve.area
        ([0.0, 0.5], [0.5, 1.0], 0.75)
    """
    _, correct = ranked(*elements(probs, targets))
    n = correct.numel()
    rejected = torch.arange(n, dtype=torch.float64, device=correct.device)
    kept_and_correct = correct.flip(0).cumsum(0).flip(0)
    return RejectionCurve(rejected / n, kept_and_correct / (n - rejected))
