"""The table that a comparison is, and the columns it may have."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, final

from lapwing.evaluation.evaluate import Predictor
from lapwing.ground.errors import ConfigError
from lapwing.ground.files.atomic import as_json
from lapwing.ground.results import Estimate
from lapwing.metrics.score_table import aligned

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

    @property
    def heading(self) -> str:
        """Its label, with an arrow that says which way it is better.

        Example:
            >>> Column("nll", "NLL, nats", "lower", ".3f", "").heading
            'NLL, nats ↓'
        """
        arrows = {"higher": " ↑", "lower": " ↓", "neither": ""}
        return self.label + arrows[self.better]

    def write(self, value: float) -> str:
        """A number as a table writes it; from a million on, by its exponent."""
        text = f"{value:{self.format}}" if abs(value) < 1e6 else f"{value:.1e}"
        return text.replace("-", "−")


COLUMNS = (
    Column("accuracy", "accuracy", "higher", ".3f", "share of examples classified rightly"),
    Column("rmse", "RMSE", "lower", ".3f", "root mean squared error, in the unit of the targets"),
    Column("nll", "NLL, nats", "lower", ".3f", "mean NLL of the test targets, nats an example, token or pixel"),
    Column("ece", "ECE", "lower", ".3f", "expected calibration error, 15 bins of equal width"),
    Column("ece_floor", "ECE floor", "neither", ".3f", "ECE of a calibrated predictor of the same confidences"),
    Column("adaptive_ece", "adaptive ECE", "lower", ".3f", "ECE over bins of equally many examples", tabled=False),
    Column("brier", "Brier", "lower", ".3f", "squared distance of the probabilities from the one-hot label"),
    Column("crps", "CRPS", "lower", ".3f", "continuous ranked probability score, in the unit of the targets"),
    Column("picp", "PICP, aim 0.95", "neither", ".3f", "share of test targets inside the 95 % intervals, best at 0.95"),
    Column(
        "interval_score", "interval score", "lower", ".3f", "of the 95 % intervals, unit of the targets", tabled=False
    ),
    Column("width", "interval width", "neither", ".3f", "of the 95 % intervals, unit of the targets", tabled=False),
    Column(
        "aurc",
        "AURC",
        "lower",
        ".4f",
        "share of errors among the surest, averaged over how many are kept",
        tabled=False,
    ),
    Column(
        "augrc",
        "AUGRC",
        "lower",
        ".4f",
        "share of all examples that are kept and wrong, averaged over how many are kept",
        tabled=False,
    ),
    Column(
        "coverage_5",
        "coverage at 5 % errors",
        "higher",
        ".3f",
        "share of examples that can be kept, the surest first, with 5 % errors",
        tabled=False,
    ),
    Column("ood_auroc", "OOD AUROC", "higher", ".3f", "how well uncertainty tells foreign examples from familiar ones"),
    Column("ood_aupr", "OOD AUPR", "higher", ".3f", "average precision of foreign examples", tabled=False),
    Column(
        "ood_fpr95",
        "OOD FPR95",
        "lower",
        ".3f",
        "familiar taken for foreign where 95 % of those are found",
        tabled=False,
    ),
    Column(
        "evidence",
        "log evidence, nats",
        "neither",
        ".0f",
        "what tuning maximised: log evidence at trained weights, nats",
        False,
    ),
    Column(
        "evidence_at_mode",
        "log evidence at mode, nats",
        "neither",
        ".0f",
        "what tuning maximised: log evidence of the network made linear, at its own mode, nats",
        False,
    ),
    Column(
        "bound",
        "bound on log evidence, nats",
        "neither",
        ".0f",
        "what tuning maximised: a lower bound on the log evidence of the network made linear, nats; up to a constant "
        "where that is not exact",
        False,
    ),
    Column(
        "validation_nll",
        "NLL tuned by, nats",
        "neither",
        ".3f",
        "what tuning minimised: NLL of the data it judged by",
        False,
    ),
    Column("prior_precision", "prior precision", "neither", ".3g", "prior precision, 1 / variance of a weight", False),
    Column(
        "knowledge_precision",
        "precision of error bars",
        "neither",
        ".3g",
        "prior precision at which error bars are told, and inputs the network does not know; of all layers but the "
        "last, where that has another",
        False,
    ),
    Column(
        "knowledge_precision_head",
        "precision of error bars, last layer",
        "neither",
        ".3g",
        "prior precision of the last layer at which error bars are told, where it is another",
        False,
        tabled=False,
    ),
    Column("fit_seconds", "fit s", "lower", ".2f", "seconds to compute the curvature", False),
    Column("tune_seconds", "tune s", "lower", ".2f", "seconds to choose the prior, or the temperature", False),
    Column("predict_seconds", "predict s", "lower", ".2f", "seconds to predict and score all test data", False),
    Column("peak_mib", "peak MiB", "lower", ".0f", "most memory above what the process held before a step", False),
)
"""Every column, in the order in which tables show them."""


@final
@dataclass(frozen=True)
class Row:
    """One method, in one run or in several.

    Args:
        method: Its name.
        tuned_by: What chose its prior (or temperature): ``"default"``, ``"validation"``, the name of another way, or
            ``""`` for nothing.
        runs: Numbers by column name, one mapping a run.
        note: Why it has no numbers; ``""`` where it has.
        certain: Whether tuning adds nothing: its probabilities are the network's own.
        predictor: What predicted, in the first run.
    """

    method: str
    tuned_by: str
    runs: tuple[Mapping[str, float], ...]
    note: str = ""
    certain: bool = False
    predictor: Predictor | None = field(default=None, repr=False, compare=False)

    def values(self, column: str) -> tuple[float, ...]:
        """Numbers of a column, one a run that has it."""
        return tuple(run[column] for run in self.runs if column in run)

    def estimate(self, column: str) -> Estimate | None:
        """Mean over the runs, with its standard error s/√n (NaN for a single run); ``None`` without numbers.

        Example:
            >>> Row("KFAC", "default", ({"nll": 1.0}, {"nll": 3.0})).estimate("nll")
            Estimate(value=2.0, stderr=1.0, samples=2)
        """
        values = self.values(column)
        if not values:
            return None
        stderr = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        return Estimate(statistics.fmean(values), stderr, len(values))


@final
@dataclass(frozen=True)
class Comparison:
    """Rows of methods and columns of numbers.

    Args:
        rows: One a method and way of tuning it.
        known: The columns there may be, in the order in which tables show them.

    Example:
        >>> plain, kfac = Row("plain network", "", ({"nll": 0.5},)), Row("KFAC", "default", ({"nll": 0.25},))
        >>> print(Comparison((plain, kfac)))
        method         tuned by  NLL, nats ↓
        plain network  –               0.500
        KFAC           default         0.250
    """

    rows: tuple[Row, ...]
    known: tuple[Column, ...] = COLUMNS

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns in which any row has a number."""
        there = {name for row in self.rows for run in row.runs for name in run}
        return tuple(column for column in self.known if column.name in there)

    def row(self, method: str, tuned_by: str = "") -> Row:
        """The row of a method.

        Args:
            method: Its name.
            tuned_by: What chose its prior.

        Raises:
            ConfigError: If there is none.
        """
        for row in self.rows:
            if (row.method, row.tuned_by) == (method, tuned_by):
                return row
        names = ", ".join(f"({row.method!r}, {row.tuned_by!r})" for row in self.rows)
        raise ConfigError("a row of this comparison", f"({method!r}, {tuned_by!r})", names or "compare(...)")

    def table(self) -> str:
        """The table as text, with ± one standard error where there are several runs, and notes below.

        Rows whose scores are the same, such as those of posteriors that predict as the network does, are one line; its
        other numbers may be from one to another. What they were tuned by is told where any was. Of posteriors to which
        tuning adds nothing the first line says so.
        """
        columns = [column for column in self.columns if column.tabled]
        shown = [[shown_number(row, column) for column in columns] for row in self.rows]
        tuned = any(row.tuned_by for row in self.rows)
        lines = [["method", *(["tuned by"] if tuned else []), *(column.heading for column in columns)]]
        for places in alike(shown, columns):
            methods = ", ".join(dict.fromkeys(self.rows[place].method for place in places))
            tuned_by = ", ".join(dict.fromkeys(self.rows[place].tuned_by or "–" for place in places))
            numbers = [span([shown[place][k] for place in places]) for k in range(len(columns))]
            lines.append([methods, *([tuned_by] if tuned else []), *numbers])
        notes = [f"{row.method}, {row.tuned_by}: {row.note}" for row in self.rows if row.note]
        certain = [(row.method, row.tuned_by) for row in self.rows if row.certain]
        first = [networks_own(certain)] if certain else []
        return "\n".join([*first, *aligned(lines, 2), *notes])

    def to_dict(self) -> dict[str, Any]:
        """``columns`` and ``rows`` as JSON has them; each number as its ``mean``, ``stderr`` and ``runs``."""
        return {
            "columns": [dataclasses.asdict(column) for column in self.columns],
            "rows": [self._as_dict(row) for row in self.rows],
        }

    def __str__(self) -> str:
        return self.table()

    def _as_dict(self, row: Row) -> dict[str, Any]:
        numbers: dict[str, Any] = {}
        for column in self.columns:
            estimate = row.estimate(column.name)
            runs = row.values(column.name)
            numbers[column.name] = estimate and {"mean": estimate.value, "stderr": estimate.stderr, "runs": runs}
        words = {"method": row.method, "tuned_by": row.tuned_by, "note": row.note, "certain": row.certain}
        return words | as_json(numbers)


def pooled(comparisons: Sequence[Comparison]) -> Comparison:
    """One comparison of the same methods over several runs, such as seeds.

    Args:
        comparisons: One a run, with the same rows.

    Raises:
        ConfigError: If there is none, or their rows differ.

    Example:
        >>> runs = [Comparison((Row("KFAC", "default", ({"nll": value},)),)) for value in (1.0, 3.0)]
        >>> print(pooled(runs))
        method  tuned by    NLL, nats ↓
        KFAC    default   2.000 ± 1.000
    """
    names = [[(row.method, row.tuned_by) for row in comparison.rows] for comparison in comparisons]
    if not names or any(other != names[0] for other in names):
        raise ConfigError("runs with the same methods", f"{names}", "the same arguments of compare() in each")
    rows = tuple(_pooled(rows) for rows in zip(*(c.rows for c in comparisons), strict=True))
    return Comparison(rows, comparisons[0].known)


def alike(cells: Sequence[Sequence[str]], columns: Sequence[Column]) -> list[list[int]]:
    """Numbers of the rows of a table that are to be one line: those of equal scores, where they have some.

    Args:
        cells: Of each row its numbers as they are written.
        columns: Theirs; those without a spread are no scores.

    Example:
        >>> columns = [Column("nll", "NLL", "lower", ".3f", ""), Column("fit", "fit s", "lower", ".2f", "", False)]
        >>> alike([["0.5", "–"], ["0.5", "1.0"], ["0.4", "2.0"]], columns)
        [[0, 1], [2]]
    """
    found: dict[tuple[str, ...], list[int]] = {}
    for place, row in enumerate(cells):
        scores = tuple(cell for cell, column in zip(row, columns, strict=True) if column.spread)
        told = any(cell != "–" for cell in scores)
        found.setdefault(scores if told else (str(place), *scores), []).append(place)
    return list(found.values())


def span(cells: Sequence[str]) -> str:
    """What a line of several rows writes of a number that is not the same in all: the least and the largest.

    Example:
        >>> span(["–", "0.25", "0.10"]), span(["–", "2", "2"])
        ('0.10 to 0.25', '2')
    """
    known = list(dict.fromkeys(cell for cell in cells if cell != "–"))
    if len(known) < 2:
        return known[0] if known else "–"
    known.sort(key=lambda cell: float(cell.replace("−", "-")))
    return f"{known[0]} to {known[-1]}"


def networks_own(rows: Sequence[tuple[str, str]]) -> str:
    """What is said of rows, by method and what tuned them, to whose probabilities tuning added nothing.

    Example:
        >>> networks_own([("KFAC", "default"), ("full", "default")])
        "KFAC, full by default: probabilities are the network's own; error bars are at a prior precision of their own"
    """
    by_tuning: dict[str, list[str]] = {}
    for method, tuned_by in rows:
        by_tuning.setdefault(tuned_by, []).append(method)
    names = "; ".join(f"{', '.join(methods)} by {tuned_by}" for tuned_by, methods in by_tuning.items())
    return f"{names}: probabilities are the network's own; error bars are at a prior precision of their own"


def shown_number(row: Row, column: Column) -> str:
    """A number as the text table shows it."""
    estimate = row.estimate(column.name)
    if estimate is None:
        return "–"
    spread = column.spread and estimate.samples > 1
    return column.write(estimate.value) + (f" ± {column.write(estimate.stderr)}" if spread else "")


def _pooled(rows: Sequence[Row]) -> Row:
    first = rows[0]
    note = next((row.note for row in rows if row.note), "")
    runs = tuple(run for row in rows for run in row.runs)
    certain = all(row.certain for row in rows)
    return Row(first.method, first.tuned_by, runs, note, certain, first.predictor)
