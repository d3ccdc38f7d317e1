"""The table that a comparison is, and the columns it may have."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final, get_args

import torch

from lapwing.comparison.examples import Examples
from lapwing.comparison.figures import Answers, Cost, draw_cost, draw_differences, draw_equal_mass, draw_risks
from lapwing.comparison.paired import Difference, paired
from lapwing.evaluation.evaluate import Predictor
from lapwing.ground.errors import ConfigError, check_option
from lapwing.ground.files.atomic import as_json
from lapwing.ground.precision import wide
from lapwing.ground.results import Estimate
from lapwing.metrics.score_table import aligned

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Figure: TypeAlias = Literal["differences", "calibration", "risk", "cost"]
"""What can be drawn."""

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
        """A number as a table writes it; from a million on, by its exponent. What rounds to 0 has no sign."""
        text = f"{value:z{self.format}}" if abs(value) < 1e6 else f"{value:.1e}"
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
        "ood_unfamiliar",
        "unfamiliar, of foreign",
        "higher",
        ".3f",
        "share of familiar examples that are better known than the median foreign one",
    ),
    Column(
        "joint",
        "joint, nats a label",
        "higher",
        ".3f",
        "log-likelihood of 40 labels of 5 examples at once, nats a label",
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
    Column(
        "further_seconds",
        "further s",
        "lower",
        ".2f",
        "seconds to score shifted data and many labels at once",
        False,
        tabled=False,
    ),
    Column("peak_mib", "peak MiB", "lower", ".0f", "most memory above what the process held before a step", False),
    Column("fit_mib", "fit MiB", "lower", ".0f", "most memory of the fit", False, tabled=False),
    Column("tune_mib", "tune MiB", "lower", ".0f", "most memory of tuning", False, tabled=False),
    Column(
        "predict_mib", "predict MiB", "lower", ".0f", "most memory of predicting the test data", False, tabled=False
    ),
)
"""Every column of a comparison without shifts, in the order in which tables show them."""


SHIFTED: Mapping[str, Better] = {"accuracy": "higher", "ece": "lower", "rmse": "lower", "picp": "neither"}
"""Scores of shifted data beside their NLL, and which way each is better."""


DIFFERENCE = Column("difference", "less the reference", "lower", ".3f", "NLL less that of the reference, nats")
"""What a table with a reference has beside the NLL."""


def columns_with(shifts: Iterable[str]) -> tuple[Column, ...]:
    """Every column, with those of shifted data by their names, before what a method costs.

    Example:
        >>> [column.label for column in columns_with(["fog"]) if column.name.endswith(":fog") and column.tabled]
        ['NLL fog, nats']
    """
    more = list[Column]()
    for name in shifts:
        more.append(Column(f"nll:{name}", f"NLL {name}, nats", "lower", ".3f", f"mean NLL under {name}, nats"))
        for score, better in SHIFTED.items():
            meaning = f"{score} under {name}"
            more.append(Column(f"{score}:{name}", meaning, better, ".3f", meaning, tabled=False))
    place = [column.name for column in COLUMNS].index("evidence")
    return (*COLUMNS[:place], *more, *COLUMNS[place:])


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
        predictor: What predicted, in the first run; ``None`` for a row that was read from a file.
        examples: Numbers of single examples, one set a run that kept them.
    """

    method: str
    tuned_by: str
    runs: tuple[Mapping[str, float], ...]
    note: str = ""
    certain: bool = False
    predictor: Predictor | None = field(default=None, repr=False, compare=False)
    examples: tuple[Examples, ...] = field(default=(), repr=False, compare=False)

    @property
    def name(self) -> str:
        """What it is called in a sentence.

        Example:
            >>> Row("KFAC", "validation", ()).name, Row("plain network", "", ()).name
            ('KFAC by validation', 'plain network')
        """
        by_itself = not self.tuned_by or self.method == "temperature scaling"
        return self.method if by_itself else f"{self.method} by {self.tuned_by}"

    @property
    def seconds(self) -> float | None:
        """Seconds to fit, tune and predict, on average over the runs; ``None`` where it did not run."""
        parts = [self.estimate(f"{step}_seconds") for step in ("fit", "tune", "predict")]
        known = [part.value for part in parts if part is not None]
        return sum(known) if known else None

    def less(self, reference: Row, column: str) -> Difference | None:
        """Its score less that of a reference on the same examples; ``None`` where the score is no mean over them."""
        return paired(self.examples, reference.examples, column)

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
    """Rows of methods and columns of numbers; print it, write it as a table, or draw it.

    Args:
        rows: One a method and way of tuning it.
        known: The columns there may be, in the order in which tables show them.
        reference: Method and what tuned it, of the row from which others differ. With one, tables are sorted by NLL,
            say which differences are noise, and end in what to take; without, rows come in their own order.

    Example:
        >>> plain, kfac = Row("plain network", "", ({"nll": 0.5},)), Row("KFAC", "default", ({"nll": 0.25},))
        >>> print(Comparison((plain, kfac)))
        method         tuned by  NLL, nats ↓
        plain network  –               0.500
        KFAC           default         0.250
    """

    rows: tuple[Row, ...]
    known: tuple[Column, ...] = COLUMNS
    reference: tuple[str, str] | None = None

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

    @property
    def reference_row(self) -> Row | None:
        """The row from which others differ; ``None`` without one."""
        return None if self.reference is None else self.row(*self.reference)

    def difference(self, row: Row, column: str = "nll") -> Difference | None:
        """A score of a row less that of the reference, on the same examples.

        Args:
            row: One of the rows.
            column: Name of the score.

        Returns:
            ``None`` for the reference itself, without one, and for a score that is no mean over examples.
        """
        reference = self.reference_row
        if reference is None or (row.method, row.tuned_by) == self.reference:
            return None
        return row.less(reference, column)

    @property
    def ranked(self) -> tuple[Row, ...]:
        """The rows by their NLL, the least first, then those without all runs; without a reference in their own order.

        A mean over other runs than those of other rows ranks nowhere: one of the runs may be harder than the others.
        """
        if self.reference is None:
            return self.rows
        return tuple(sorted(self.rows, key=lambda row: (not self._is_whole(row), mean_or_infinite(row, "nll"))))

    @property
    def _most_runs(self) -> int:
        return max((len(row.values("nll")) for row in self.rows), default=0)

    def _is_whole(self, row: Row) -> bool:
        """Whether it has a finite NLL in as many runs as any row has one."""
        return len(row.values("nll")) == self._most_runs and math.isfinite(mean_or_infinite(row, "nll"))

    def verdict(self) -> str:
        """What to take and why, in a sentence or two; empty without a reference.

        The best is the row of least NLL, of those that have all runs. Of all whose NLL is within two standard errors of
        it, paired, the one that takes the fewest seconds is to be taken. Where the best is better than the reference
        beyond noise, so must the one be that is taken: what is too noisy to be told from either does not count.
        """
        scored = [row for row in self.ranked if self._is_whole(row)]
        if self.reference is None or not scored:
            return ""
        best = scored[0]
        near = [best, *(row for row in scored[1:] if within_noise(row, best))]
        if self._surely_better(best):
            near = [row for row in near if self._surely_better(row)]
        taken = min(near, key=lambda row: math.inf if row.seconds is None else row.seconds)
        words = [f"Take {taken.name}: {self._against_reference(taken)}."]
        others = [row.name for row in near if row is not taken]
        if others:
            words.append(f"Within noise of the best, and slower: {', '.join(others)}.")
        return " ".join(words)

    def _surely_better(self, row: Row) -> bool:
        """Whether its NLL is less than that of the reference beyond noise."""
        reference = self.reference_row
        found = None if reference is None else row.less(reference, "nll")
        return found is not None and found.value < 0 and not found.noise

    def _against_reference(self, row: Row) -> str:
        """An NLL, and what it is less than that of the reference."""
        nll = self.column("nll").write(mean_or_infinite(row, "nll"))
        seconds = "" if row.seconds is None else f", in {row.seconds:.3g} s"
        reference = self.reference_row
        if reference is None or row is reference:
            return f"NLL {nll}{seconds}, and nothing is better beyond noise"
        found = row.less(reference, "nll")
        if found is None:
            return f"NLL {nll}{seconds}"
        word = "below" if found.value < 0 else "above"
        noise = ", which is noise" if found.noise else ""
        gap = f"{abs(found.value):.3f} ± {found.error:.3f} {word} {reference.name}{noise}"
        return f"NLL {nll}, {gap}{seconds}"

    def column(self, name: str) -> Column:
        """The column of a name.

        Raises:
            ConfigError: If there is none.
        """
        for column in self.known:
            if column.name == name:
                return column
        raise ConfigError("a column of this comparison", repr(name), ", ".join(column.name for column in self.known))

    def table(self) -> str:
        """The table as text, with ± one standard error where there are several runs, and notes below.

        Rows whose scores are the same, such as those of posteriors that predict as the network does, are one line; its
        other numbers may be from one to another. What they were tuned by is told where any was. Of posteriors to which
        tuning adds nothing the first line says so. With a reference, a number whose difference from it is noise has a
        dagger.
        """
        headings, lines = self._cells()
        certain = [(row.method, row.tuned_by) for row in self.rows if row.certain]
        first = [networks_own(certain)] if certain else []
        words = 2 if self.tuned else 1
        return "\n".join([*first, *aligned([headings, *lines], words), *self._notes()])

    def to_markdown(self) -> str:
        """The table of ``table`` in Markdown.

        Example:
            >>> print(Comparison((Row("KFAC", "default", ({"nll": 0.25},)),)).to_markdown())
            | method | tuned by | NLL, nats ↓ |
            | --- | --- | ---: |
            | KFAC | default | 0.250 |
        """
        headings, lines = self._cells()
        words = 2 if self.tuned else 1
        rule = ["---"] * words + ["---:"] * (len(headings) - words)
        text = list[str]()
        for line in (headings, rule, *lines):
            cells = [cell.replace("|", "\\|") for cell in line]
            text.append(f"| {' | '.join(cells)} |")
        return "\n".join([*text, *(f"\n{note}" for note in self._notes())])

    def to_frame(self) -> Any:
        """The numbers as a data frame of pandas, a row a method.

        Columns are ``method``, ``tuned_by``, ``note``, those of ``columns`` by name, ``NAME_stderr`` where there are
        several runs, and ``NAME_difference`` with ``NAME_difference_stderr`` where they are paired with the reference.

        Raises:
            ConfigError: If ``pandas`` is not installed.
        """
        try:
            pandas: Any = import_module("pandas")
        except ImportError as error:
            raise ConfigError("pandas, for a data frame", str(error), "pip install pandas, or to_dict()") from error
        return pandas.DataFrame([self._record(row) for row in self.ranked])

    def _record(self, row: Row) -> dict[str, Any]:
        record: dict[str, Any] = {"method": row.method, "tuned_by": row.tuned_by, "note": row.note}
        for column in self.columns:
            estimate = row.estimate(column.name)
            record[column.name] = math.nan if estimate is None else estimate.value
            if estimate is not None and estimate.samples > 1:
                record[f"{column.name}_stderr"] = estimate.stderr
            difference = self.difference(row, column.name)
            if difference is not None:
                record[f"{column.name}_difference"] = difference.value
                record[f"{column.name}_difference_stderr"] = difference.error
        return record

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        """Headings and lines of the table, methods that score alike in one."""
        columns = self._shown_columns()
        rows = self.ranked
        if self.reference is not None:
            rows = tuple(row for row in rows if row.runs)
        shown = [[self._cell(row, column) for column in columns] for row in rows]
        lines = list[list[str]]()
        for places in alike(shown, columns):
            methods = ", ".join(dict.fromkeys(rows[place].method for place in places))
            tuned_by = ", ".join(dict.fromkeys(rows[place].tuned_by or "–" for place in places))
            numbers = [span([shown[place][k] for place in places]) for k in range(len(columns))]
            lines.append([methods, *([tuned_by] if self.tuned else []), *numbers])
        return ["method", *(["tuned by"] if self.tuned else []), *(column.heading for column in columns)], lines

    @property
    def tuned(self) -> bool:
        """Whether any row was tuned."""
        return any(row.tuned_by for row in self.rows)

    def _shown_columns(self) -> list[Column]:
        """The columns of the table; the difference from the reference stands beside the NLL."""
        columns = [column for column in self.columns if column.tabled]
        if self.differs:
            columns.insert(1 + [column.name for column in columns].index("nll"), DIFFERENCE)
        return columns

    @property
    def differs(self) -> bool:
        """Whether any row has an NLL that differs from the reference on the same examples."""
        return any(self.difference(row) is not None for row in self.rows)

    def _cell(self, row: Row, column: Column) -> str:
        """A number as the table shows it, with a dagger where its difference from the reference is noise."""
        if column is DIFFERENCE:
            return self._written_difference(row)
        text = shown_number(row, column)
        difference = None if column.name == "nll" else self.difference(row, column.name)
        return f"{text} †" if difference is not None and difference.noise else text

    def _written_difference(self, row: Row) -> str:
        """The NLL less that of the reference, with the error of the pair."""
        difference = self.difference(row)
        same = difference is not None and difference.value == difference.error == 0
        if same or (row.method, row.tuned_by) == self.reference:
            return "0"
        if difference is None:
            return "–"
        value = f"{difference.value:+z.3f}".replace("-", "−")
        dagger = " †" if difference.noise else ""
        return f"{value} ± {difference.error:.3f}{dagger}"

    def _notes(self) -> list[str]:
        """What is said below the table: what a dagger means, why rows have no numbers, what to take."""
        notes = [f"{row.method}, {row.tuned_by}: {row.note}" for row in self.rows if row.note]
        if self.reference is not None:
            some = [(row, len(row.values("nll"))) for row in self.rows if row.values("nll")]
            parts = [f"{row.name} {runs}" for row, runs in some if runs < self._most_runs]
            if parts:
                notes.append(f"not ranked, since they have fewer than {self._most_runs} runs: {', '.join(parts)}")
        reference = self.reference_row
        if reference is not None and self.differs:
            notes.insert(0, f"† within two paired standard errors of {reference.name}: noise")
        verdict = self.verdict()
        return [*notes, verdict] if verdict else notes

    def plot(
        self, kind: Figure = "differences", column: str = "nll", *, bins: int = 10, ax: Axes | None = None
    ) -> Axes:
        """A figure: ``plot().figure.savefig("name.png")`` writes it, a cell that ends in ``plot().figure`` shows it.

        Args:
            kind: ``"differences"`` from the reference, with two paired standard errors, those beyond noise filled;
                ``"calibration"``, accuracy less confidence in bins of equally many examples with binomial intervals;
                ``"risk"``, errors among what is kept by how much is; ``"cost"``, NLL against seconds. Calibration and
                risk are those of the best method, the reference and the plain network.
            column: The score whose differences are drawn: ``nll``, ``accuracy``, ``joint``, ``ood_auroc``, or
                ``nll:NAME`` of shifted data.
            bins: Bins of a figure of calibration.
            ax: Where to draw; ``None`` makes a figure.

        Raises:
            ConfigError: If ``matplotlib`` is not installed, there is no such kind, or no method has what it shows.

        Example:
            >>> row = Row("KFAC", "", ({"nll": 0.5, "fit_seconds": 2.0},))
            >>> Comparison((row,)).plot("cost").get_xlabel()
            'seconds to fit, tune and predict'
        """
        check_option("kind", kind, get_args(Figure))
        if kind == "differences":
            return self._plot_differences(column, ax)
        if kind == "cost":
            return self._plot_cost(ax)
        answers = {row.name: answers_of(row) for row in self._exemplary() if has_answers(row)}
        if not answers:
            raise ConfigError("methods of classes that keep their examples", "none", "compare(...) of a classifier")
        return draw_risks(answers, ax=ax) if kind == "risk" else draw_equal_mass(answers, bins=bins, ax=ax)

    def _plot_differences(self, column: str, ax: Axes | None) -> Axes:
        what = self.column(column)
        reference = self.reference_row
        found = {row.name: self.difference(row, column) for row in self.ranked}
        differences = {name: difference for name, difference in found.items() if difference is not None}
        if reference is None or not differences:
            hint = "compare(...), whose rows keep their examples, and a score such as 'nll'"
            raise ConfigError(f"differences of {column!r} from a reference", "none", hint)
        words = f"{what.label}, less that of {reference.name}"
        return draw_differences(differences, words, higher_is_better=what.better == "higher", ax=ax)

    def _plot_cost(self, ax: Axes | None) -> Axes:
        costs = list[Cost]()
        for row in self.ranked:
            difference = self.difference(row)
            error = 0.0 if difference is None else difference.error
            sign = 0 if difference is None else difference.sign
            if row.seconds and row.values("nll"):
                costs.append(Cost(row.name, row.seconds, mean_or_infinite(row, "nll"), error, sign))
        if not costs:
            raise ConfigError("methods with their NLL and seconds", "none", "compare(...), with a method that ran")
        reference = self.reference_row
        line = None if reference is None else mean_or_infinite(reference, "nll")
        return draw_cost(costs, self.column("nll").label, line, ax=ax)

    def _exemplary(self) -> list[Row]:
        """The best method, the reference and the plain network, those there are."""
        reference = self.reference_row
        chosen = [*self.ranked[:1], *([] if reference is None else [reference])]
        chosen += [row for row in self.rows if row.method == "plain network"][:1]
        return list({(row.method, row.tuned_by): row for row in chosen}.values())

    def to_dict(self) -> dict[str, Any]:
        """``columns`` and ``rows`` as JSON has them; each number as its ``mean``, ``stderr`` and ``runs``.

        With a reference each number that is paired with it has its ``difference``, with ``value``, ``stderr`` and
        whether it is ``noise``; the rows are in the order of the table.
        """
        content: dict[str, Any] = {
            "columns": [dataclasses.asdict(column) for column in self.columns],
            "rows": [self._as_dict(row) for row in self.ranked],
        }
        if self.reference is not None:
            content |= {"reference": list(self.reference), "verdict": self.verdict()}
        return content

    def __str__(self) -> str:
        return self.table()

    def _as_dict(self, row: Row) -> dict[str, Any]:
        numbers: dict[str, Any] = {}
        for column in self.columns:
            estimate = row.estimate(column.name)
            if estimate is None:
                numbers[column.name] = None
                continue
            runs = row.values(column.name)
            number: dict[str, Any] = {"mean": estimate.value, "stderr": estimate.stderr, "runs": runs}
            difference = self.difference(row, column.name)
            if difference is not None:
                error = difference.error
                number["difference"] = {"value": difference.value, "stderr": error, "noise": difference.noise}
            numbers[column.name] = number
        words = {"method": row.method, "tuned_by": row.tuned_by, "note": row.note, "certain": row.certain}
        return words | as_json(numbers)


def mean_or_infinite(row: Row, column: str) -> float:
    """The mean of a score; infinite without one, or where it is no number."""
    values = row.values(column)
    mean = statistics.fmean(values) if values else math.inf
    return math.inf if math.isnan(mean) else mean


def has_answers(row: Row) -> bool:
    """Whether it keeps confidences and whether they were right, of classes."""
    return any("correct" in each.values for each in row.examples)


def answers_of(row: Row) -> Answers:
    """Confidence of every example in every run, and whether it was right, float64."""
    kept = [each.values for each in row.examples if "correct" in each.values]
    confidence = torch.cat([values["confidence"] for values in kept])
    correct = torch.cat([values["correct"] for values in kept])
    return wide(confidence), wide(correct)


def within_noise(row: Row, best: Row) -> bool:
    """Whether the NLL of a row is that of the best but for noise; not where they cannot be paired."""
    difference = row.less(best, "nll")
    return difference is not None and difference.noise


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
    return Comparison(rows, comparisons[0].known, comparisons[0].reference)


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


def joined_rows(rows: Iterable[Row]) -> tuple[Row, ...]:
    """The rows of several runs, those of the same method tuned in the same way as one, in the order of the first.

    Example:
        >>> runs = [Row("KFAC", "", ({"nll": 1.0},)), Row("diagonal", "", ()), Row("KFAC", "", ({"nll": 3.0},))]
        >>> [(row.method, row.values("nll")) for row in joined_rows(runs)]
        [('KFAC', (1.0, 3.0)), ('diagonal', ())]
    """
    groups = dict[tuple[str, str], list[Row]]()
    for row in rows:
        groups.setdefault((row.method, row.tuned_by), []).append(row)
    return tuple(_pooled(group) for group in groups.values())


def _pooled(rows: Sequence[Row]) -> Row:
    """One row of several runs of one method."""
    first = rows[0]
    note = next((row.note for row in rows if row.note), "")
    runs = tuple(run for row in rows for run in row.runs)
    certain = all(row.certain for row in rows)
    examples = tuple(each for row in rows for each in row.examples)
    return Row(first.method, first.tuned_by, runs, note, certain, first.predictor, examples)
