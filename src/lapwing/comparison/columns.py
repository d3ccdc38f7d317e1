"""The numbers a method may have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, final

Better: TypeAlias = Literal["higher", "lower", "neither"]
"""Which way a number is better."""


@final
@dataclass(frozen=True)
class Column:
    """A number every method may have.

    Args:
        name: Its key in a row.
        label: How a table calls it, with its unit.
        better: Which way it is better.
        format: How a table writes it.
        meaning: One sentence.
        spread: Whether a table shows its standard error too.
        tabled: Whether a table shows it at all.
    """

    name: str
    label: str
    better: Better
    format: str
    meaning: str
    spread: bool = True
    tabled: bool = True

    def write(self, value: float) -> str:
        """A number as a table writes it; from a million on, by its exponent."""
        text = f"{value:{self.format}}" if abs(value) < 1e6 else f"{value:.1e}"
        return text.replace("-", "−")


COLUMNS = (
    Column("accuracy", "accuracy", "higher", ".3f", "share of examples classified rightly"),
    Column("rmse", "RMSE", "lower", ".3f", "root mean squared error, in the unit of the targets"),
    Column("nll", "NLL", "lower", ".3f", "mean negative log likelihood of the test targets, nats an example"),
    Column("ece", "ECE", "lower", ".3f", "expected calibration error, 15 bins of equal width"),
    Column(
        "ece_floor", "ECE floor", "neither", ".3f", "ECE of a perfectly calibrated predictor of the same confidences"
    ),
    Column("adaptive_ece", "adaptive ECE", "lower", ".3f", "ECE over bins of equally many examples", tabled=False),
    Column("brier", "Brier", "lower", ".3f", "squared distance of the probabilities from the one-hot label"),
    Column("crps", "CRPS", "lower", ".3f", "continuous ranked probability score, in the unit of the targets"),
    Column("picp", "PICP", "neither", ".3f", "share of test targets inside the 95 % interval"),
    Column(
        "rejection_area", "rejection", "higher", ".4f", "mean accuracy as the least sure are rejected", tabled=False
    ),
    Column("ood_auroc", "OOD AUROC", "higher", ".3f", "how well uncertainty tells foreign examples from familiar ones"),
    Column(
        "evidence",
        "evidence",
        "neither",
        ".0f",
        "what tuning maximised: log marginal likelihood of the training targets at the trained weights, nats",
        False,
    ),
    Column(
        "evidence_at_mode",
        "evidence at mode",
        "neither",
        ".0f",
        "what tuning maximised: log marginal likelihood of the network made linear, at its own mode, nats",
        False,
    ),
    Column(
        "bound",
        "bound",
        "neither",
        ".0f",
        "what tuning maximised: a lower bound on the log marginal likelihood of the network made linear, nats; up to a "
        "constant where that is not exact",
        False,
    ),
    Column(
        "validation_nll",
        "tuned NLL",
        "neither",
        ".3f",
        "what tuning minimised: mean negative log likelihood of the data it judged by, nats an example",
        False,
    ),
    Column("prior_precision", "prior", "neither", ".3g", "prior precision, 1 / variance of a weight", False),
    Column("fit_seconds", "fit s", "lower", ".2f", "seconds to compute the curvature", False),
    Column("tune_seconds", "tune s", "lower", ".2f", "seconds to choose the prior, or the temperature", False),
    Column("predict_seconds", "predict s", "lower", ".2f", "seconds to predict and score all test data", False),
    Column("peak_mib", "peak MiB", "lower", ".0f", "most memory above what the process held before a step", False),
)
"""Every column, in the order in which tables show them."""
