"""One study: its rows, and their means over the seeds, as JSON and as a table.

A study that is run in parts, one network or method a call, is put together by ``--join``:

    python -m studies.sampled cifar --json ALL --join PART PART
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from studies.report import collect
from studies.runs import shown_tables, with_means
from studies.sampled.setting import Setting

NAMES = ("toy", "invariance", "table", "fidelity", "cifar")


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, run the study, write its report after every row, print a line for each and a table."""
    args = _arguments(arguments)
    study = importlib.import_module(f"studies.sampled.{args.name}")
    setting = Setting(args.data, args.quick, args.seeds, args.kept, args.train, tuple(args.only), args.epochs)
    found = collect(with_means(study, setting, args.join), args.json)
    shown_tables(found, study.COLUMNS)


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m studies.sampled", description=__doc__)
    parser.add_argument("name", choices=NAMES, help="which study")
    parser.add_argument("--json", type=Path, required=True, help="report to write")
    parser.add_argument("--data", type=Path, help="data folder, for MNIST and CIFAR-10")
    parser.add_argument("--seeds", type=int, default=5, help="how often each case is repeated")
    parser.add_argument("--train", type=int, help="training examples the curvature is summed over")
    parser.add_argument("--epochs", type=int, help="passes over the data networks are trained for")
    parser.add_argument("--kept", type=Path, help="folder where trained networks are kept")
    parser.add_argument("--only", nargs="*", default=(), help="families, sizes, data or networks to run, by name")
    parser.add_argument("--join", nargs="+", type=Path, default=(), help="reports to put together, instead of a run")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes, to try it out")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
