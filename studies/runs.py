"""The command line of every study: its setting as flags, its rows as they come, means, verdict, tables and a figure."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

from studies.report import Row, collect, shown
from studies.summary import summarised, table

TAKEN_AGAIN = ("summary", "verdict")
"""What marks the rows that are made of other rows, and not joined."""


@dataclass(frozen=True)
class Report:
    """What becomes of the rows.

    Args:
        json: report to write
        figure: figure to draw, where the study has one
        join: reports on its parts to put together, instead of a run
    """

    json: Path
    figure: Path | None = None
    join: tuple[Path, ...] | None = None


def command(
    prog: str, description: str | None, setting: Any, names: Sequence[str] = (), **options: Any
) -> Callable[[Sequence[str] | None], None]:
    """What runs a study from a command line.

    Args:
        prog: The study's module, or the package of several.
        description: What the help says.
        setting: Its options as they are by default, or their class: a flag a field, explained by the docstring.
        names: The studies of a package, of which one is named first.
        **options: Those of ``run``.
    """
    kind = setting if isinstance(setting, type) else type(setting)
    given = {} if setting is kind else {"default": setting}

    def main(arguments: Sequence[str] | None = None) -> None:
        """Run what was typed; ``None`` takes ``sys.argv``."""
        import tyro

        flat = tyro.conf.arg(name="")
        fields: list[Any] = [("name", tyro.conf.Positional[Literal[tuple(names)]])] if names else []
        fields += [("report", Annotated[Report, flat]), ("setting", Annotated[kind, flat], dataclasses.field(**given))]
        asked = dataclasses.make_dataclass("Asked", fields)
        typed: Any = tyro.cli(asked, prog=f"python -m {prog}", description=description, args=arguments)
        if typed.report.join == ():
            sys.stderr.write("--join takes the reports to put together\n")
            sys.exit(2)
        module = importlib.import_module(f"{prog}.{typed.name}" if names else prog)
        run(module, typed.report, typed.setting, **options)

    return main


def run(study: ModuleType, report: Report, setting: Any, *, pause: float = 0.0, hidden: Sequence[str] = ()) -> None:
    """Write the report after every row, print a line for each and a table a part, draw the figure that was asked for.

    Args:
        study: Has ``rows(setting)``; may have ``COLUMNS``, whose means over the seeds are then taken, ``COUNTS`` where
            whole numbers are measured, ``verdict(rows)``, which makes further rows of all, ``text(rows)`` to be printed
            in the end, and ``draw(rows)``, a figure.
        report: What becomes of the rows.
        setting: How much of it is run.
        pause: Seconds between two writings of the report; see ``collect``.
        hidden: What a line leaves out of a row.
    """
    found = collect(with_verdict(study, setting, report.join or (), hidden), report.json, pause=pause)
    shown_tables(found, getattr(study, "COLUMNS", ()))
    for row in found:
        if "verdict" in row and hasattr(study, "verdict"):
            sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")
    if hasattr(study, "text"):
        sys.stdout.write(f"\n{study.text(found)}")
    if report.figure is not None and hasattr(study, "draw"):
        report.figure.parent.mkdir(parents=True, exist_ok=True)
        study.draw(found).savefig(report.figure)


def with_verdict(
    study: ModuleType, setting: object, reports: Sequence[Path] = (), hidden: Sequence[str] = ()
) -> Iterator[Row]:
    """The rows of every seed as they come or as reports have them, the means, and what the study makes of them."""
    found: list[Row] = []
    for row in with_means(study, setting, reports, hidden):
        found.append(row)
        yield row
    if hasattr(study, "verdict"):
        yield from study.verdict(found)


def with_means(
    study: ModuleType, setting: object, reports: Sequence[Path] = (), hidden: Sequence[str] = ()
) -> Iterator[Row]:
    """The rows of every seed as they come, or as reports on its parts have them, then the means of each case."""
    found: list[Row] = []
    for row in joined(reports) if reports else shown(study.rows(setting), hidden):
        found.append(row)
        yield row
    if hasattr(study, "COLUMNS"):
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
