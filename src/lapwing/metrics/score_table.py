"""Scores by name, as they are printed: with the unit of each, and which way it is better."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final


def aligned(lines: Sequence[Sequence[str]], words: int) -> list[str]:
    """Lines of a table as text, its columns under one another: the first few, words, to the left, numbers to the right.

    Args:
        lines: The cells of each line.
        words: How many columns are words.

    Example:
        >>> aligned([["method", "NLL"], ["KFAC", "0.25"]], 1)
        ['method   NLL', 'KFAC    0.25']
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sides = [str.ljust if place < words else str.rjust for place in range(len(widths))]
    return ["  ".join(side(w, n) for side, w, n in zip(sides, line, widths, strict=True)).rstrip() for line in lines]


MEANINGS = {
    "accuracy": "share of examples, tokens or pixels, higher is better",
    "nll": "nats an example, token or pixel, lower is better",
    "ece": "calibration error of the confidence, lower is better",
    "ece_floor": "what a calibrated predictor would have as ece",
    "adaptive_ece": "calibration error, bins of equally many, lower is better",
    "brier": "squared distance from 0 to 2, lower is better",
    "aurc": "share of errors among the surest, averaged over how many are kept, lower is better",
    "augrc": "share of all examples that are kept and wrong, averaged likewise, lower is better",
    "coverage_5": "share of examples that can be kept, the surest first, at 5 % errors, higher is better",
    "rmse": "unit of the targets, lower is better",
    "crps": "unit of the targets, lower is better",
    "picp": "share of targets inside the 95 % intervals, best at 0.95",
    "interval_score": "unit of the targets, of the 95 % intervals, lower is better",
    "width": "unit of the targets, mean width of the 95 % intervals",
    "ood_auroc": "foreign examples told from familiar ones, 0.5 is chance, higher is better",
    "ood_aupr": "average precision of foreign examples, their share is chance, higher is better",
    "ood_fpr95": "share of familiar examples taken for foreign where 95 % of those are found, lower is better",
    "ood_unfamiliar": "share of familiar examples better known than the median foreign one, higher is better",
}
"""The unit of each score, and which way it is better."""


@final
class Scores(dict[str, float]):
    """Scores by name; printed with their units, and which way they are better.

    Example:
        >>> print(Scores({"accuracy": 0.9, "nll": 0.25}))
        accuracy  0.9000  share of examples, tokens or pixels, higher is better
        nll       0.2500  nats an example, token or pixel, lower is better
    """

    def __str__(self) -> str:
        numbers = aligned([[name, f"{value:.4f}"] for name, value in self.items()], 1)
        meanings = [MEANINGS.get(name, "") for name in self]
        return "\n".join(f"{line}  {words}".rstrip() for line, words in zip(numbers, meanings, strict=True))
