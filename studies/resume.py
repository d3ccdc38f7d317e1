"""Runs that go on from the report of an interrupted one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.command import Setting
from benchmarks.report import Row


def earlier(setting: Setting) -> list[Row]:
    """The rows of an interrupted report, ``--resume FILE``, each with the commit that measured it.

    Read before the run writes the same file.
    """
    path = Path(str(setting.more.get("resume", "")))
    if not path.is_file():
        return []
    report = json.loads(path.read_text(encoding="utf-8"))
    source = {key: report[key] for key in ("commit", "command", "machine")}
    found = [row for row in report["rows"] if not row.get("summary") and "verdict" not in row]
    return [{"source": source} | {key: value for key, value in row.items() if key != "study"} for row in found]


def resumed(known: Sequence[Row], case: Row, work: Callable[[], Row]) -> Row:
    """The row of a case that is known, else that of the work.

    Args:
        known: As ``earlier`` has them.
        case: What tells the row from others.
        work: Measures it anew.
    """
    return next((row for row in known if case.items() <= row.items()), None) or case | work()
