"""Every link on every network: rows of each seed and their means as JSON and as tables.

    python -m studies.links --data DIR --json FILE

A study that is run in parts, some pairs a call, is put together by ``--join``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from studies.links import study
from studies.report import collect
from studies.runs import shown_tables, with_means


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, run the study, write its report after every row, print a line for each and a table."""
    args = _arguments(arguments)
    setting = study.Setting(args.data, args.quick, args.seeds, tuple(args.only))
    shown_tables(collect(with_means(study, setting, args.join), args.json, pause=5.0), study.COLUMNS)


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m studies.links", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="report to write")
    parser.add_argument("--data", type=Path, required=True, help="data folder, for MNIST and CIFAR-10")
    parser.add_argument("--seeds", type=int, default=5, help="how often networks are trained here")
    parser.add_argument("--only", nargs="*", default=(), help="pairs to run, by name, such as resnet20")
    parser.add_argument("--join", nargs="+", type=Path, default=(), help="reports to put together, instead of a run")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes, to try it out")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
