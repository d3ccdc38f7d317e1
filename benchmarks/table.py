"""What several seeds say together: means and their standard errors, as rows and as a table."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence

from benchmarks.report import Row

APART = ("seed", "failure")
"""What tells the rows of one case apart."""


def case(row: Row) -> tuple[tuple[str, object], ...]:
    """What the seeds of a case have in common: its words and whole numbers."""
    return tuple((k, v) for k, v in row.items() if k not in APART and isinstance(v, str | bool | int))


def averaged(columns: Mapping[str, Sequence[float]]) -> Row:
    """The mean of each column, and ``NAME_stderr``, its standard error, of those with several numbers."""
    means = {name: statistics.fmean(values) for name, values in columns.items()}
    several = {name: values for name, values in columns.items() if len(values) > 1}
    return means | {f"{k}_stderr": statistics.stdev(v) / math.sqrt(len(v)) for k, v in several.items()}


def summarised(rows: Iterable[Row], counts: Sequence[str] = ()) -> Iterator[Row]:
    """A row a case: each number as its mean, ``NAME_stderr`` beside it, and how many ``seeds`` had it.

    Args:
        rows: Rows of single seeds.
        counts: Whole numbers that are measured, such as steps taken, and do not name the case.
    """
    cases: dict[object, list[Row]] = {}
    for row in rows:
        floats = {k: float(row[k]) if k in counts and row[k] is not None else row[k] for k in row}
        cases.setdefault(case(floats), []).append(floats)
    for found in cases.values():
        common = dict(case(found[0]))
        numbers = dict.fromkeys(k for row in found for k, v in row.items() if isinstance(v, float))
        values = {k: [row[k] for row in found if isinstance(row.get(k), float)] for k in numbers}
        failures = [row["failure"] for row in found if row.get("failure")]
        told = {"failure": failures[0], "failures": len(failures)} if failures else {}
        yield common | {"seeds": len(found) - len(failures), "summary": True} | averaged(values) | told


def table(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Summaries as text, a case a line: what names it, then the columns that any of them has, with ± standard errors.

    Args:
        rows: As ``summarised`` gives them.
        columns: Numbers to show.
    """
    from lapwing.metrics.score_table import aligned

    hidden = ("study", "summary", "seeds", "failures", *columns)
    names = dict.fromkeys(k for row in rows for k, _ in case(row) if k not in hidden)
    names = [name for name in names if len({row.get(name) for row in rows}) > 1]
    kept = [name for name in columns if any(row.get(name) is not None for row in rows)]
    lines = [[*names, *kept]]
    lines += [[*(str(row.get(name, "–")) for name in names), *(cell(row, name) for name in kept)] for row in rows]
    notes = [f"{' '.join(str(row.get(n, '–')) for n in names)}: {row['failure']}" for row in rows if row.get("failure")]
    return "\n".join([*aligned(lines, len(names)), *notes]) + "\n"


def cell(row: Row, column: str) -> str:
    """A number, with its standard error where the row has one."""
    value, error = row.get(column), row.get(f"{column}_stderr", row.get(f"{column}_error"))
    if value is None:
        return "–"
    return (f"{value:.4g}" if isinstance(value, float) else str(value)) + (f" ± {error:.2g}" if error else "")


def markdown(rows: Sequence[Row], columns: Mapping[str, str]) -> str:
    """Rows as a table of a page, a row a line; what a row does not have is left empty.

    Args:
        rows: In the order of the lines.
        columns: What is shown of each row, and how it is headed.

    Example:
        >>> print(markdown([{"step": "fit", "seconds": 0.125}], {"step": "step", "seconds": "seconds"}))
        | step | seconds |
        |---|---|
        | fit | 0.12 |
    """

    def shown(value: object) -> str:
        if value is None:
            return ""
        if isinstance(value, float):
            return f"{value:.2g}" if abs(value) < 100 else f"{value:.0f}"
        return str(value)

    heading = f"| {' | '.join(columns.values())} |"
    lines = [f"| {' | '.join(shown(row.get(name)) for name in columns)} |" for row in rows]
    return "\n".join([heading, "|---" * len(columns) + "|", *lines])


def with_tables(page: str, fresh: Iterable[str]) -> str:
    """A page in which tables are replaced by those that have the same first line.

    Args:
        page: Its text.
        fresh: Tables made anew, in the order of the page: of several with the same first line each replaces its own.

    Raises:
        ValueError: Where the page has no table with such a first line, after the one before.
    """
    done = 0
    for table in fresh:
        heading = table.partition("\n")[0]
        pattern = re.compile(rf"^{re.escape(heading)}(?:\n\|.*)*", flags=re.MULTILINE)
        found = pattern.search(page, done)
        if found is None:
            raise ValueError(f"the page has no table that begins with {heading!r}")
        page = page[: found.start()] + table + page[found.end() :]
        done = found.start() + len(table)
    return page
