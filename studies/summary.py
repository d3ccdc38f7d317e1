"""What several seeds say together: means and their standard errors, as rows and as a table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence

from lapwing.comparison.table import aligned
from studies.report import Row

APART = ("seed", "failure")
"""What tells the rows of one case apart."""


def case(row: Row) -> tuple[tuple[str, object], ...]:
    """What the seeds of a case have in common: its words and whole numbers."""
    return tuple((k, v) for k, v in row.items() if k not in APART and isinstance(v, str | bool | int))


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
        means = {k: statistics.fmean(v) for k, v in values.items()}
        errors = {f"{k}_stderr": statistics.stdev(v) / math.sqrt(len(v)) for k, v in values.items() if len(v) > 1}
        failures = [row["failure"] for row in found if row.get("failure")]
        told = {"failure": failures[0], "failures": len(failures)} if failures else {}
        yield common | {"seeds": len(found) - len(failures), "summary": True} | means | errors | told


def table(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Summaries as text, a case a line: what names it, then the columns that any of them has, with ± standard errors.

    Args:
        rows: As ``summarised`` gives them.
        columns: Numbers to show.
    """
    hidden = ("study", "summary", "seeds")
    names = dict.fromkeys(k for row in rows for k, _ in case(row) if k not in hidden and k not in columns)
    names = [name for name in names if len({row.get(name) for row in rows}) > 1 and name != "failures"]
    shown = [column for column in columns if any(column in row for row in rows)]
    lines = [[*names, *shown]]
    for row in rows:
        cells = [str(row.get(name, "–")) for name in names]
        lines.append(cells + [_cell(row, column) for column in shown])
    notes = [f"{' '.join(str(row.get(n, '–')) for n in names)}: {row['failure']}" for row in rows if row.get("failure")]
    return "\n".join([*aligned(lines, len(names)), *notes]) + "\n"


def _cell(row: Row, column: str) -> str:
    if row.get(column) is None:
        return "–"
    error = row.get(f"{column}_stderr")
    return f"{row[column]:.4g}" + (f" ± {error:.2g}" if error is not None else "")
