"""What every study does with its rows: say why one has no numbers, write and show them as they come, draw a figure."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.measure import write_json
from lapwing.show.plots.canvas import panels

T = TypeVar("T")
Row = dict[str, Any]


def collect(rows: Iterable[Row], path: Path, *, pause: float = 0.0) -> list[Row]:
    """Write the report again after every row, so that an interrupted study loses one row at most.

    Args:
        rows: The rows as the study makes them.
        path: JSON file: ``{"commit", "command", "machine", "rows"}``.
        pause: Seconds between two writings, for studies of many rows; one that is killed loses those of so long.

    Returns:
        All rows.
    """
    found: list[Row] = []
    due = time.monotonic()
    try:
        for row in rows:
            found.append(row)
            if time.monotonic() >= due:
                write_json(path, found)
                due = time.monotonic() + pause
    finally:
        if pause and found:
            write_json(path, found)
    return found


def shown(rows: Iterable[Row], hidden: Sequence[str] = ()) -> Iterator[Row]:
    """The rows, each printed as it comes; see ``line``."""
    for row in rows:
        sys.stdout.write(line(row, hidden) + "\n")
        sys.stdout.flush()
        yield row


def line(row: Row, hidden: Sequence[str] = ()) -> str:
    """A row as one line of text; lists, what is hidden and what is empty left out."""
    facts = {k: v for k, v in row.items() if k not in ("study", *hidden) and not isinstance(v, list | dict)}
    words = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in facts.items() if v not in ("", None)}
    return ", ".join(f"{k} {v}" for k, v in words.items())


def attempt(work: Callable[[], T]) -> tuple[T | None, str]:
    """What a piece of work returns, or why it did not: that it failed, and how, is a finding."""
    try:
        return work(), ""
    except Exception as error:
        words = str(error).strip().splitlines()
        return None, f"{type(error).__name__}: {words[0] if words else 'no message'}"[:300]


def tried(
    work: Callable[[], T], name: str = "seconds", clock: Callable[[], float] = time.perf_counter
) -> tuple[T | None, Row]:
    """What a piece of work returns, and a row with the seconds it took and its ``failure``; see ``attempt``."""
    start = clock()
    found, failure = attempt(work)
    return found, {name: clock() - start, "failure": failure}


def figure(width: float, height: float, columns: int) -> Any:
    """An empty figure with a row of axes, which pyplot does not know."""
    return panels(width, height, columns)[0].figure
