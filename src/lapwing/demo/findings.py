"""What the demo claims, each claim checked against the numbers of the same seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, final

from lapwing.comparison import Comparison, Row
from lapwing.ground.results import Estimate

PLAIN = ("plain network", "")
TEMPERATURE = ("temperature scaling", "validation")
AT_WEIGHTS = "evidence at the weights"


@final
@dataclass(frozen=True)
class Finding:
    """A claim and the paired difference that decides it.

    Args:
        claim: One sentence.
        difference: Mean over the seeds of the method's number minus the other's.
        stderr: Its standard error; ``None`` for a single seed, which has none.
        holds: Whether it is so.
    """

    claim: str
    difference: float
    stderr: float | None
    holds: bool

    def to_dict(self) -> dict[str, Any]:
        """The finding as JSON has it."""
        return asdict(self)

    def __str__(self) -> str:
        sign = "yes" if self.holds else "NO "
        spread = ", one seed" if self.stderr is None else f" ± {self.stderr:.4f}"
        return f"{sign}  {self.claim} (difference {self.difference:+.4f}{spread})"


def findings(comparison: Comparison) -> tuple[Finding, ...]:
    """Whether the posterior of least NLL beats the plain network and temperature scaling, and what evidence does.

    Args:
        comparison: The digits, over all seeds.
    """
    plain, scaled = comparison.row(*PLAIN), comparison.row(*TEMPERATURE)
    posteriors = [row for row in comparison.rows if row.values("fit_seconds")]
    winner = best(posteriors, "nll")
    beaten = [_beats(winner, plain, column) for column in ("nll", "ece", "ood_auroc")]
    told = (*beaten, *_keeps_up(winner, scaled), *_without_validation(posteriors, plain, scaled))
    return tuple(dict.fromkeys(told))  # the winner may have been tuned without validation data, and be told of twice


def best(rows: list[Row], column: str, *, highest: bool = False) -> Row:
    """The row of lowest mean, or of highest."""
    ranked = sorted(rows, key=lambda row: statistics.fmean(row.values(column)))
    return ranked[-1 if highest else 0]


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


def spread(difference: Estimate) -> float | None:
    """The standard error of a difference, where there are seeds to tell it by."""
    return difference.stderr if difference.samples > 1 else None


def title(row: Row) -> str:
    """A row in words."""
    return f"{row.method} tuned by {row.tuned_by}" if row.tuned_by else row.method


def _beats(row: Row, plain: Row, column: str) -> Finding:
    gain = paired(row, plain, column)
    label = {"nll": "NLL", "ece": "ECE", "ood_auroc": "OOD AUROC"}[column]
    better = gain.value > 0 if column == "ood_auroc" else gain.value < 0
    return Finding(f"{label}: {title(row)} beats the {plain.method}", gain.value, spread(gain), better)


def _keeps_up(winner: Row, scaled: Row) -> Iterator[Finding]:
    if len(scaled.values("nll")) != len(winner.values("nll")):
        return
    loss = paired(winner, scaled, "nll")
    claim = f"NLL: {title(winner)} is no worse than {scaled.method} by more than one standard error"
    yield Finding(claim, loss.value, spread(loss), loss.value <= loss.stderr)


def _without_validation(posteriors: list[Row], plain: Row, scaled: Row) -> Iterator[Finding]:
    """What tuning without validation data does to the best of its posteriors, told as plainly where it harms."""
    rows = [row for row in posteriors if row.tuned_by == "default"]
    yield _beats(best(rows, "ood_auroc", highest=True), plain, "ood_auroc")
    yield _beats(best(rows, "nll"), plain, "nll")
    for row in rows:
        yield from _keeps_up(row, scaled)
    classical = [row for row in posteriors if row.tuned_by == AT_WEIGHTS]
    if classical:
        yield _beats(best(classical, "nll"), plain, "nll")
