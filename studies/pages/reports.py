"""Reading a committed report, and writing its numbers as a table of a page."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from benchmarks.command import TAKEN_AGAIN
from benchmarks.report import ROOT, Row

RESULTS = ROOT / "benchmarks" / "results"
NOTHING = "–"
"""What stands where a row has no number."""


@cache
def report(name: str) -> Mapping[str, Any]:
    """A report of ``benchmarks/results``.

    Args:
        name: Of its file, without the ending.
    """
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def rows(name: str, **facts: object) -> list[Row]:
    """The rows of a report that say so.

    Args:
        name: Of the report.
        facts: What the rows hold, by key.
    """
    return [row for row in report(name)["rows"] if facts.items() <= row.items()]


def row(name: str, **facts: object) -> Row:
    """The first row of a report that says so.

    Raises:
        LookupError: If there is none.
    """
    found = rows(name, **facts)
    if not found:
        raise LookupError(f"benchmarks/results/{name}.json has no row with {facts}")
    return found[0]


def tables_of_studies(folder: str, makers: Mapping[str, Callable[[Sequence[Row]], Iterator[str]]]) -> Iterator[str]:
    """The tables of several studies of a folder, of those that have a report.

    Args:
        folder: The beginning of the reports' names.
        makers: By the name of the study, in the order of the page; takes the rows that were measured.
    """
    for study, make in makers.items():
        if (RESULTS / f"{folder}-{study}.json").exists():
            yield from make([each for each in rows(f"{folder}-{study}") if not any(map(each.get, TAKEN_AGAIN))])


def grid(heads: Mapping[str, str], lines: Iterable[Sequence[str]]) -> str:
    """A table of a page.

    Args:
        heads: How each column is headed, and ``"<"`` or ``">"`` for the side its text stands at.
        lines: The cells.

    Example:
        >>> print(grid({"method": "<", "NLL": ">"}, [["plain", "0.290"]]))
        | method | NLL |
        |---|---:|
        | plain | 0.290 |
    """
    sides = "|".join("---:" if side == ">" else "---" for side in heads.values())
    cells = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join(["| " + " | ".join(heads) + " |", f"|{sides}|", *cells])


def fixed(value: float | None, digits: int) -> str:
    """A number with so many digits after the point.

    Example:
        >>> fixed(-0.29003, 3), fixed(None, 3)
        ('−0.290', '–')
    """
    return NOTHING if value is None else f"{value:.{digits}f}".replace("-", "−")


def grouped_digits(value: float) -> str:
    """A whole number with commas.

    Example:
        >>> grouped_digits(13500.0)
        '13,500'
    """
    return f"{value:,.0f}"


def significant(value: float) -> str:
    """Two significant digits, and whole numbers from 100 on.

    Example:
        >>> significant(0.00281), significant(3.0), significant(561.8)
        ('0.0028', '3.0', '562')
    """
    if abs(value) >= 99.5:
        return grouped_digits(value)
    return f"{value:#.2g}".rstrip(".").replace("-", "−")


def difference(value: float, error: float, digits: int = 4) -> str:
    """A difference with its sign and its standard error.

    Example:
        >>> difference(-0.01762, 0.00584)
        '−0.0176 ± 0.0058'
    """
    return f"{value:+.{digits}f} ± {error:.{digits}f}".replace("-", "−")


def estimate(value: float | None, error: float | None) -> str:
    """A mean with as many digits as its standard error allows: one of the error, two where the first is 1 or 2.

    Args:
        value: The mean; ``None`` where there is none.
        error: Its standard error; ``None`` or 0 for three digits of the mean.

    Example:
        >>> estimate(0.1563, 0.0058), estimate(3.31e-14, 3.2e-15), estimate(94.6, 24.2), estimate(0.0239, 0.00131)
        ('0.156 ± 0.006', '3.3e−14 ± 3e−15', '95 ± 24', '0.0239 ± 0.0013')
    """
    if value is None:
        return NOTHING
    if not error or not math.isfinite(error):
        return f"{value:.3g}".replace("-", "−")
    first = int(f"{error:.3e}"[0])
    kept = 2 if first <= 2 or error >= 10 else 1
    place = math.floor(math.log10(error)) - kept + 1
    if abs(value) < 1e-3:
        digits = max(math.floor(math.log10(abs(value))) - place, 0) if value else 0
        text = f"{value:.{digits}e} ± {error:.{kept - 1}e}"
        return text.replace("e-0", "e-").replace("-", "−")
    digits = max(-place, 0)
    return f"{value:.{digits}f} ± {error:.{digits}f}".replace("-", "−")


def mean_of(row: Row, name: str) -> str:
    """The mean of a column, with its standard error."""
    return estimate(row.get(name), row.get(f"{name}_stderr"))
