"""What is common to the runs of studies: the rows of one, or of reports on its parts, then their means, and tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

from studies.report import Row, shown
from studies.summary import summarised, table

TAKEN_AGAIN = ("summary", "verdict")
"""What marks the rows that are made of other rows, and not joined."""


def with_means(study: ModuleType, setting: object, reports: Sequence[Path] = ()) -> Iterator[Row]:
    """The rows of every seed as they come, then the means of each case.

    Args:
        study: Has ``rows(setting)``, and ``COUNTS`` where whole numbers are measured.
        setting: How much of it is run.
        reports: Reports on its parts, to take the rows from instead of running it.
    """
    found: list[Row] = []
    for row in joined(reports) if reports else shown(study.rows(setting)):
        found.append(row)
        yield row
    yield from summarised(found, getattr(study, "COUNTS", ()))


def joined(reports: Sequence[Path]) -> Iterator[Row]:
    """The rows of several reports without their means, each with the commit, command and machine that measured it."""
    for path in reports:
        report = json.loads(path.read_text(encoding="utf-8"))
        source = {key: report[key] for key in ("commit", "command", "machine")}
        yield from ({"source": source} | row for row in report["rows"] if not any(row.get(k) for k in TAKEN_AGAIN))


def shown_tables(found: Sequence[Row], columns: Sequence[str]) -> None:
    """Print the means, a table a part of the study."""
    means = [row for row in found if row.get("summary")]
    for part in dict.fromkeys(row.get("part", "") for row in means):
        sys.stdout.write(f"\n{part}\n{table([row for row in means if row.get('part', '') == part], columns)}")
