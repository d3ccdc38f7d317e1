"""What the page says about the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lapwing.comparison import Comparison
from lapwing.demo.digits import Digits
from lapwing.demo.findings import Finding


def digits_section(comparison: Comparison, data: Digits, seeds: int, found: Sequence[Finding]) -> dict[str, Any]:
    """The first section: handwritten digits.

    Args:
        comparison: Over all seeds so far.
        data: The split of the first seed.
        seeds: How many there are.
        found: What the demo claims.
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
            f"images: means over {seeds} seed{'s' * (seeds > 1)} ± one "
            "standard error. OOD AUROC ranks by one minus the confidence, for every method alike. Predict seconds are "
            "those of the test and the unseen images together.",
        ],
        **comparison.to_dict(),
        "findings": [finding.to_dict() for finding in found],
        "figures": [],
    }


def gap_section(comparison: Comparison) -> dict[str, Any]:
    """The second section: the curve with a gap.

    Args:
        comparison: Of one network.
    """
    return {
        "title": "Regression with a gap",
        "text": [
            "A network of two hidden layers is fitted to 80 noisy points of sin 2x + x/3, none of them between −1 and "
            "1.5. Nothing is held out: the noise is that of the network's residuals, and the evidence at its weights "
            "chooses the prior. Held-out points would come from where the training points do and say nothing about the "
            "gap: what is tuned by them gives up the uncertainty there. OOD AUROC tells the gap from the rest by the "
            "predicted standard deviation.",
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
    "confidence": ("Confidence on known and on unseen digits", "First seed. Uncertainty is of use where the two part."),
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
