"""What the page says about the numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lapwing.comparison import Comparison
from lapwing.demo.digits import Digits
from lapwing.demo.questions import GAP, POSTERIOR, Answer, answers

WIDTH = 120
"""Characters of a line in a terminal."""

OF_DIGITS = ("nll", "ece", "ood_auroc", "tune_seconds", "predict_seconds")
"""What a terminal shows of the digits; the page has all of it."""

OF_CURVE = ("rmse", "nll", f"nll:{GAP}", "ood_auroc", "fit_seconds")
"""What a terminal shows of the curve."""


def in_terminal(digits: Comparison, curve: Comparison) -> tuple[str, str]:
    """Both tables, as wide as a terminal: some of their columns.

    Args:
        digits: The digits.
        curve: The curve with a gap.
    """
    arrows = "arrows say which way is better:"
    of_digits = f"The digits; {arrows}\n{narrow(digits, OF_DIGITS)}"
    of_curve = f"The curve with a gap; {arrows}\n{narrow(curve, OF_CURVE)}"
    return of_digits, of_curve


def narrow(comparison: Comparison, columns: Sequence[str]) -> str:
    """A table of some columns, its sentences broken into lines.

    Args:
        comparison: The methods.
        columns: By name.
    """
    known = tuple(column for column in comparison.known if column.name in columns)
    lines = replace(comparison, known=known).table().splitlines()
    return "\n".join("\n".join(textwrap.wrap(line, WIDTH)) if len(line) > WIDTH else line for line in lines)


def page(digits: Comparison, curve: Comparison, data: Digits, seeds: int) -> dict[str, Any]:
    """What the page says, but for its figures.

    Args:
        digits: The digits, over all seeds so far.
        curve: The curve with a gap, likewise.
        data: The split of the digits of the first seed.
        seeds: How many there are.
    """
    return digits_section(digits, data, seeds, answers(digits, curve)) | {"sections": [gap_section(curve, seeds)]}


def digits_section(comparison: Comparison, data: Digits, seeds: int, found: Sequence[Answer]) -> dict[str, Any]:
    """The first section: handwritten digits.

    Args:
        comparison: Over all seeds so far.
        data: The split of the first seed.
        seeds: How many there are.
        found: What came of the questions.
    """
    sizes = [len(part[1]) for part in (data.train, data.validation, data.test)]
    return {
        "title": "Handwritten digits, three of them unseen",
        "text": [
            f"A small convolutional network learns seven of the ten digits from {sizes[0]} images of 8 × 8 pixels "
            "(scikit-learn), by Adam, without a regulariser, until it fits them: it ends up surer than it is right. "
            "The other three digits are the out-of-distribution set. Every seed holds out other digits, draws another "
            "split and starts from other weights.",
            f"Each posterior is fitted once, at the trained weights, then tuned three times: by the default of "
            f"lw.tune, which needs no further data (mixtures of training images of different classes); by "
            f"the classical evidence at the trained weights, which are no optimum of it; and by the NLL of {sizes[1]} "
            f"validation images, which temperature scaling is fitted to as well. Scores are over {sizes[2]} test "
            f"images: means over {seeds} seed{'s' * (seeds > 1)} ± one standard error. Rotated is by 25 degrees, to "
            "one side or the other. OOD AUROC ranks by what a posterior does not know, and a network alone by its "
            "confidence. Predict seconds are those of the test and the unseen images together.",
            f"Seven questions come first. {POSTERIOR[0]} at the default of lw.tune answers for the digits, the full "
            "covariance for the curve below; both were chosen beforehand. A difference is the posterior's number less "
            "that of the other method on the same seeds. ✓ is better and ✗ worse beyond two standard errors; ≈ is "
            "neither. AUGRC is the share of all digits that are kept and wrong, averaged over how many are kept.",
        ],
        **comparison.to_dict(),
        "asked": "Seven questions",
        "findings": [answer.to_dict() for answer in found],
        "figures": [],
    }


def gap_section(comparison: Comparison, seeds: int) -> dict[str, Any]:
    """The second section: the curve with a gap.

    Args:
        comparison: Over all seeds so far.
        seeds: How many there are.
    """
    return {
        "title": "Regression with a gap",
        "text": [
            "A network of two hidden layers is fitted to 80 noisy points of sin 2x + x/3, none of them between −1 and "
            "1.5. The noise of a posterior is that of the network's residuals, and the evidence at its weights chooses "
            "the prior; that of the plain network tuned by validation is what 80 held-out points tell. They come from "
            "where the training points do and say nothing about the gap. OOD AUROC tells the gap from the rest by the "
            f"predicted standard deviation. Means over {seeds} seed{'s' * (seeds > 1)}, each with other points and "
            "other weights.",
        ],
        **comparison.to_dict(),
        "figures": [],
    }


CAPTIONS = {
    "scores": (
        "Scores with standard errors",
        "The dotted line is the plain network. Evidence at weights that were trained without a prior makes the network "
        "far too unsure; mixtures of training images, which show how it behaves between them, do not.",
    ),
    "reliability": (
        "Reliability",
        "Accuracy of predictions against their confidence, first seed; bars below: examples.",
    ),
    "confidence": (
        "Confidence on known and on unseen digits",
        "First seed. Confidence is of use where the two part; AUROC is by it alone.",
    ),
    "rejection": (
        "Rejection",
        "Known and unseen test digits together, first seed: an unseen digit is a mistake unless it is rejected.",
    ),
    "evidence": (
        "Tuning by the classical evidence",
        "The log evidence at the trained weights and the prior precision, step by step, first seed: it climbs to "
        "priors so weak that predictions suffer.",
    ),
    "choice": (
        "What the two ways of tuning see",
        "KFAC, first seed: log evidence at the trained weights and validation NLL over the prior precision. Their "
        "optima lie far apart; the dotted line is what mixtures of training images choose.",
    ),
    "bands": (
        "Error bars in the gap",
        "Each posterior tuned by default. The full covariance is narrow on the data and wide in the gap; KFAC blurs "
        "the difference; the diagonal, the naive way, loses it; the last layer has too few functions to be wide.",
    ),
}
"""Title and caption of each figure."""
