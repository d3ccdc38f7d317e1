"""What every benchmark and study does with its rows: time and try, show and write them as they come, draw a figure.

A row is a dictionary. Nothing here needs lapwing, so that an earlier commit of it can be measured with it.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
Row = dict[str, Any]

GIB = 2**30
ROOT = Path(__file__).parent.parent
PAUSE = 5.0
"""Seconds between two writings of a report; a process that is killed loses the rows of so long."""


def beside(work: str, quantity: str, ours: float | None, peer: float | None, peer_name: str, note: str = "") -> Row:
    """The same quantity for both sides.

    Args:
        work: What was done, such as ``"lenet/kfac/fit"``.
        quantity: ``"seconds"``, ``"peak_mib"``, or what else the benchmark compares.
        ours: Cost to lapwing; ``None`` where it did not run.
        peer: Cost to the peer; ``None`` where it did not run.
        peer_name: Which peer, its version and how it was set.
        note: Why a side has no number, or what differs between the sides.

    Example:
        >>> beside("lenet/kfac/fit", "seconds", ours=0.2, peer=0.4, peer_name="peer 1.0")["ratio"]
        0.5
    """
    row: Row = {"work": work, "quantity": quantity, "ours": ours, "peer": peer, "peer_name": peer_name}
    row["ratio"] = ours / peer if ours is not None and peer else None
    return row | {"note": note} if note else row


def collect(rows: Iterable[Row], path: Path | None, pause: float = PAUSE) -> list[Row]:
    """All rows, written again and again as they come, so that an interrupted run loses none of them.

    Args:
        rows: The rows as they are made.
        path: JSON file, see ``write_json``; ``None`` writes nothing.
        pause: Seconds between two writings of it.
    """
    found: list[Row] = []
    due = time.monotonic()
    try:
        for row in rows:
            found.append(row)
            if path is not None and time.monotonic() >= due:
                write_json(path, found)
                due = time.monotonic() + pause
    finally:
        if path is not None and found:
            write_json(path, found)
    return found


def shown(rows: Iterable[Row]) -> Iterator[Row]:
    """The rows, each printed as it comes; see ``line``."""
    for row in rows:
        sys.stdout.write(line(row) + "\n")
        sys.stdout.flush()
        yield row


def line(row: Row) -> str:
    """A row as one line of text; lists and what is empty left out."""
    facts = {k: v for k, v in row.items() if k != "study" and not isinstance(v, list | dict)}
    words = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in facts.items() if v not in ("", None)}
    return ", ".join(f"{k} {v}" for k, v in words.items())


def attempt(work: Callable[[], T]) -> tuple[T | None, str]:
    """What a piece of work returns, or why it did not: that it failed, and how, is a finding."""
    try:
        return work(), ""
    except Exception as error:
        return None, reason(error)


def reason(error: Exception) -> str:
    """What kind of error it is, and the first line of what it says."""
    words = str(error).strip().splitlines()
    return f"{type(error).__name__}: {words[0] if words else 'no message'}"[:300]


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """What a piece of work returns, and its seconds."""
    start = time.perf_counter()
    return work(), time.perf_counter() - start


def tried(work: Callable[[], T], name: str = "seconds", clock: Callable[[], float] = time.perf_counter) -> Any:
    """What a piece of work returns or ``None``, and the row that says its seconds and why it failed.

    Args:
        work: To be done.
        name: Of the seconds in the row.
        clock: ``time.process_time`` for those of the processor.
    """
    start = clock()
    found, failure = attempt(work)
    return found, {name: clock() - start, "failure": failure}


def figure(width: float, height: float, columns: int) -> Any:
    """An empty figure with a row of axes, which pyplot does not know."""
    from lapwing.ground.canvas import panels

    return panels(float(width), float(height), columns)[0].figure


def grouped(rows: Iterable[Row], *keys: str) -> dict[Any, list[Row]]:
    """Rows by what they have in one column, or in several, in the order of the first of each."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        at = tuple(row.get(key, "") for key in keys)
        found.setdefault(at if len(at) > 1 else at[0], []).append(row)
    return found


def by_panel(
    rows: Sequence[Row], key: str, width: float, height: float
) -> tuple[Any, list[tuple[Any, str, list[Row]]]]:
    """A figure, and its panels with what the rows of each have in one column."""
    groups = grouped(rows, key)
    made = figure(width * len(groups), height, len(groups))
    return made, [(panel, *group) for panel, group in zip(made.axes, groups.items(), strict=True)]


def curve(panel: Any, rows: Sequence[Row], x: str, y: str, **style: Any) -> Any:
    """Draw one number of the rows against another, with its standard error where they have one."""
    errors = [row.get(f"{y}_stderr", row.get(f"{y}_error")) or 0.0 for row in rows]
    return panel.errorbar([row[x] for row in rows], [row[y] for row in rows], errors, **({"marker": "o"} | style))


def write_json(path: Path, rows: Sequence[Row]) -> None:
    """Write ``{"commit", "command", "machine", "rows"}`` to ``path``, replacing it whole or not at all."""
    from lapwing.ground.files import atomic  # here, because processes that are measured import this module too

    report = {"commit": commit(), "command": command(sys.argv), "machine": machine(), "rows": list(rows)}
    atomic.write_json(report, path)


def command(words: Sequence[str]) -> str:
    """What was typed, folders of data and output left out, so that no path of one machine is written down.

    Args:
        words: The program and its options, as ``sys.argv`` holds them.

    Example:
        >>> command(["benchmarks/cost.py", "--data", "/somewhere/data", "--json", "/else/cost.json", "--seeds", "5"])
        'python -m benchmarks.cost --data DIR --json cost.json --seeds 5'
    """
    program = Path(words[0]).resolve().with_suffix("")
    module = program.relative_to(ROOT) if program.is_relative_to(ROOT) else Path(program.name)
    said = ["DIR" if before == "--data" else _without_folder(word) for before, word in pairwise(words)]
    return shlex.join(["python", "-m", ".".join(part for part in module.parts if part != "__main__"), *said])


def _without_folder(word: str) -> str:
    return Path(word).name if Path(word).is_absolute() else word


def commit() -> str:
    """The commit of this repository, ``-dirty`` where files differ from it, ``unknown`` outside git."""
    ask = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    return subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def machine() -> dict[str, str | int | float]:
    """What the numbers depend on: processor, cores, memory, versions (no names of hosts or paths)."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": told_by_system("cpuinfo", "model name") or platform.processor() or "unknown",
        "cores": os.cpu_count() or 1,
        "memory_gib": round(pages / GIB, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
    }


def told_by_system(file: str, fact: str) -> str:
    """The first value of a fact in one of the files below ``/proc``; empty where there is none."""
    info = Path("/proc") / file
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(fact)), "")
