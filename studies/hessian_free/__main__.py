"""One study: its rows, their means over the seeds and what they show, as JSON, as a table, and as a figure."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from studies.report import Row, collect
from studies.sampled.__main__ import with_means
from studies.sampled.setting import Setting
from studies.sampled.summary import table

NAMES = ("table", "intervals", "sparsification", "cost", "digits")


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, run the study, write its report after every row, print a line for each and a table."""
    args = _arguments(arguments)
    study = importlib.import_module(f"studies.hessian_free.{args.name}")
    found = collect(with_verdict(study, Setting(quick=args.quick, seeds=args.seeds)), args.json, pause=20.0)
    means = [row for row in found if row.get("summary")]
    for part in dict.fromkeys(row.get("part", "") for row in means):
        sys.stdout.write(f"\n{part}\n{table([row for row in means if row.get('part', '') == part], study.COLUMNS)}")
    for row in found:
        if "verdict" in row:
            sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")
    if args.figure is not None:
        args.figure.parent.mkdir(parents=True, exist_ok=True)
        study.draw(found, args.figure)


def with_verdict(study: ModuleType, setting: Setting) -> Iterator[Row]:
    """The rows of every seed as they come, the means of each case, and what the study makes of them."""
    found: list[Row] = []
    for row in with_means(study, setting):
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
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes, to try it out")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
