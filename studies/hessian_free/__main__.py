"""One study: its rows, their means over the seeds and what they show, as JSON, as a table, and as a figure."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

from studies.report import Row, collect
from studies.runs import shown_tables, with_means
from studies.sampled.setting import Setting

NAMES = ("table", "intervals", "sparsification", "cost", "digits")


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, run the study, write its report after every row, print a line for each and a table."""
    args = _arguments(arguments)
    study = importlib.import_module(f"studies.hessian_free.{args.name}")
    setting = Setting(quick=args.quick, seeds=args.seeds, kept=args.kept, only=tuple(args.only))
    found = collect(with_verdict(study, setting, args.join), args.json, pause=20.0)
    shown_tables(found, study.COLUMNS)
    for row in found:
        if "verdict" in row:
            sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")
    if args.figure is not None:
        args.figure.parent.mkdir(parents=True, exist_ok=True)
        study.draw(found, args.figure)


def with_verdict(study: ModuleType, setting: Setting, reports: Sequence[Path] = ()) -> Iterator[Row]:
    """The rows of every seed as they come or as reports have them, the means, and what the study makes of them."""
    found: list[Row] = []
    for row in with_means(study, setting, reports):
        found.append(row)
        yield row
    if hasattr(study, "verdict"):
        yield from study.verdict(found)


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m studies.hessian_free", description=__doc__)
    parser.add_argument("name", choices=NAMES, help="which study")
    parser.add_argument("--json", type=Path, required=True, help="report to write")
    parser.add_argument("--figure", type=Path, help="figure to draw: intervals, sparsification, cost")
    parser.add_argument("--seeds", type=int, default=20, help="how often each case is repeated")
    parser.add_argument("--kept", type=Path, help="folder where trained networks are kept")
    parser.add_argument("--only", nargs="*", default=(), help="data sets of the table, or seeds of the digits, to run")
    parser.add_argument("--join", nargs="+", type=Path, default=(), help="reports to put together, instead of a run")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes, to try it out")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
