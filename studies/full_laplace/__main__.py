"""One study: its rows as JSON, its figure where asked."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from studies.full_laplace.setting import Setting
from studies.report import collect, shown

NAMES = ("spectrum", "cost", "quadrature", "preconditioners", "mnist")
HIDDEN = ("data", "verdict")
"""What a line leaves out of a row, beside what is empty."""


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, run the study, write its report after every row, print a line for each."""
    args = _arguments(arguments)
    if args.name == "sine":
        _sine(args)
        return
    study = importlib.import_module(f"studies.full_laplace.{args.name}")
    setting = Setting(args.data, args.quick, args.device, args.images)
    found = collect(shown(study.rows(setting), HIDDEN), args.json)
    if args.figure is not None:
        args.figure.parent.mkdir(parents=True, exist_ok=True)
        study.draw(found, args.figure)


def _sine(args: argparse.Namespace) -> None:
    """Hand over to ``studies.sine``, which has a command line of its own."""
    from studies import sine

    passed = ["--json", str(args.json)]
    passed += ["--figure", str(args.figure)] if args.figure is not None else []
    passed += ["--quick"] if args.quick else []
    sine.main(passed)


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m studies.full_laplace", description=__doc__)
    parser.add_argument("name", choices=(*NAMES, "sine"), help="which study")
    parser.add_argument("--json", type=Path, required=True, help="report to write")
    parser.add_argument("--figure", type=Path, help="figure to draw")
    parser.add_argument("--data", type=Path, help="data folder, for MNIST; without it scikit-learn's digits")
    parser.add_argument("--images", type=int, help="training images the curvature is summed over")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes, to try it out")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
