"""One study: its rows and their means over the seeds as JSON and as a table, its figure where asked.

A study that is run in parts, one network or method a call, is put together by ``--join``:

    python -m studies.ella cifar --json ALL --join PART PART
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from studies.ella.setting import Setting
from studies.report import collect
from studies.runs import shown_tables, with_means

NAMES = ("toy", "ablation", "stopping", "rank", "cifar", "corruption", "rejection", "seconds")


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, run the study, write its report after every row, print a line for each and a table."""
    args = _arguments(arguments)
    study = importlib.import_module(f"studies.ella.{args.name}")
    setting = Setting(args.data, args.quick, args.seeds, tuple(args.networks), tuple(args.only), args.images, args.kept)
    found = collect(with_means(study, setting, args.join), args.json)
    shown_tables(found, study.COLUMNS)
    if args.figure is not None and hasattr(study, "draw"):
        args.figure.parent.mkdir(parents=True, exist_ok=True)
        study.draw(found, args.figure)


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m studies.ella", description=__doc__)
    parser.add_argument("name", choices=NAMES, help="which study")
    parser.add_argument("--json", type=Path, required=True, help="report to write")
    parser.add_argument("--data", type=Path, help="data folder, for MNIST and CIFAR-10")
    parser.add_argument("--networks", nargs="*", default=(), help="networks to run: cnn, ella_resnet20, resnet20, ...")
    parser.add_argument("--only", nargs="*", default=(), help="methods to run, by name")
    parser.add_argument("--seeds", type=int, default=5, help="how often what is random is repeated")
    parser.add_argument("--images", type=int, help="training images of the methods ELLA is compared with")
    parser.add_argument("--kept", type=Path, help="folder where the trained CNN is kept")
    parser.add_argument("--figure", type=Path, help="figure to draw")
    parser.add_argument("--join", nargs="+", type=Path, default=(), help="reports to put together, instead of a run")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes, to try it out")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
