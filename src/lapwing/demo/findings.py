"""What the demo claims, each claim checked against the numbers of the same seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, final

from lapwing.compare import Comparison, Row
from lapwing.results import Estimate

PLAIN = ("plain network", "")
TEMPERATURE = ("temperature scaling", "validation")


@final
@dataclass(frozen=True)
class Finding:
    """A claim and the paired difference that decides it.

    Args:
        claim: One sentence.
        difference: Mean over the seeds of the method's number minus the other's.
        stderr: Its standard error; 0 for a single seed.
        holds: Whether it is so.
    """

    claim: str
    difference: float
    stderr: float
    holds: bool

    def to_dict(self) -> dict[str, Any]:
        """The finding as JSON has it."""
        return asdict(self)

    def __str__(self) -> str:
        sign = "yes" if self.holds else "NO "
        return f"{sign}  {self.claim} (difference {self.difference:+.4f} ± {self.stderr:.4f})"


def findings(comparison: Comparison) -> tuple[Finding, ...]:
    """Whether the posterior of least NLL beats the plain network, and keeps up with temperature scaling.

    Args:
        comparison: The digits, over all seeds.
    """
    plain, scaled = comparison.row(*PLAIN), comparison.row(*TEMPERATURE)
    posteriors = [row for row in comparison.rows if row.values("evidence")]
    winner = best(posteriors, "nll")
    return (*_beats(winner, plain), *_keeps_up(winner, scaled), *_warns(posteriors, plain))


def best(rows: list[Row], column: str) -> Row:
    """The row of smallest mean."""
    return min(rows, key=lambda row: statistics.fmean(row.values(column)))


def paired(row: Row, other: Row, column: str) -> Estimate:
    """Mean difference of two rows over the same seeds, with its standard error (0 for a single seed).

    Example:
        >>> a, b = Row("a", "", ({"nll": 1.0}, {"nll": 4.0})), Row("b", "", ({"nll": 0.0}, {"nll": 1.0}))
        >>> paired(a, b, "nll")
        Estimate(value=2.0, stderr=1.0, samples=2)
    """
    differences = [x - y for x, y in zip(row.values(column), other.values(column), strict=True)]
    n = len(differences)
    return Estimate(statistics.fmean(differences), statistics.stdev(differences) / math.sqrt(n) if n > 1 else 0.0, n)


def title(row: Row) -> str:
    """A row in words."""
    return f"{row.method} tuned by {row.tuned_by}" if row.tuned_by else row.method


def _beats(winner: Row, plain: Row) -> Iterator[Finding]:
    for column, label, sign in (("nll", "NLL", 1), ("ece", "ECE", 1), ("ood_auroc", "OOD AUROC", -1)):
        gain = paired(winner, plain, column)
        claim = f"{label}: {title(winner)} beats the {plain.method}"
        yield Finding(claim, gain.value, gain.stderr, sign * gain.value < 0)


def _keeps_up(winner: Row, scaled: Row) -> Iterator[Finding]:
    if len(scaled.values("nll")) != len(winner.values("nll")):
        return
    loss = paired(winner, scaled, "nll")
    claim = f"NLL: {title(winner)} is no worse than {scaled.method} by more than one standard error"
    yield Finding(claim, loss.value, loss.stderr, loss.value <= loss.stderr)


def _warns(posteriors: list[Row], plain: Row) -> Iterator[Finding]:
    """Where the evidence made things worse, which is told as plainly as where it helped."""
    for row in posteriors:
        if row.tuned_by == "evidence":
            loss = paired(row, plain, "nll")
            yield Finding(f"NLL: {title(row)} beats the {plain.method}", loss.value, loss.stderr, loss.value < 0)
