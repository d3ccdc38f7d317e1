"""The command line of every benchmark and study, and what is done with the rows it asks for.

    python -m studies.NAME --json FILE [--data DIR] [--quick] [--seeds N] [--only WORD ...] [--figure FILE]

``--quick`` does with seconds on one core, small networks and generated data; its numbers say nothing. A run in parts,
one network or method a call, is put together by ``--join PART PART``; studies that measure row by row take the rows of
an interrupted run, ``--resume FILE``: its report, or of what runs through ``lw.compare`` the file of finished rows,
which grows as it goes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.report import Row, collect, grouped, shown
from benchmarks.table import summarised, table

TAKEN_AGAIN = ("summary", "verdict")
"""What marks the rows that are made of other rows, and not joined."""


@dataclass(frozen=True)
class Setting:
    """The options of the command line.

    Args:
        data: The data folder; ``None`` does with what is generated or comes with scikit-learn.
        quick: Whether seconds must do: few examples, small networks, few cases.
        seeds: How often what is random, or a timing, is repeated.
        only: Of what is gone through by name (networks, data, methods) only these; empty for all.
        images: Training examples the curvature is summed over; ``None`` for the study's own choice.
        epochs: Passes over the data a network is trained for; ``None`` for the study's own choice.
        kept: Folder of trained networks, shared by the studies; ``None`` trains anew.
        device: A torch device, such as ``"cuda"``; see ``Study.devices``.
        resume: Report of an interrupted run; the same file may be written again. Of what runs through ``lw.compare``
            the file of its finished rows, to which those of this run are added.
        more: Options of this study alone, by name.
    """

    data: Path | None = None
    quick: bool = False
    seeds: int = 5
    only: tuple[str, ...] = ()
    images: int | None = None
    epochs: int | None = None
    kept: Path | None = None
    device: str = "cpu"
    resume: Path | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def repeats(self) -> range:
        """The seeds."""
        return range(min(2, self.seeds) if self.quick else self.seeds)

    @property
    def folder(self) -> Path:
        """The data folder, where nothing can take its place."""
        if self.data is None:
            raise SystemExit("these data cannot be generated: give their folder, --data DIR, or try --quick")
        return self.data

    @cached_property
    def known(self) -> list[Row]:
        """The rows of an interrupted run."""
        return list(joined([self.resume])) if self.resume is not None and self.resume.is_file() else []

    def resumed(self, case: Row, work: Callable[[], Row]) -> Row:
        """The row of a case as an interrupted run had it, else that of the work.

        Args:
            case: What tells the row from others.
            work: Measures it anew.
        """
        return next((row for row in self.known if case.items() <= row.items()), None) or case | work()

    def among(self, choices: Iterable[str], default: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Those that were asked for; where none of them was, the default, or all."""
        choices = tuple(choices)
        return tuple(name for name in choices if name in self.only) or default or choices


@dataclass(frozen=True)
class Study:
    """What a command runs.

    Args:
        rows: Makes the rows.
        columns: Numbers to show the means of, over the seeds of each case; empty where no means are taken.
        counts: Whole numbers that are measured, such as steps taken, and do not name a case.
        verdict: What the rows and their means show, as more rows.
        draw: A figure of the rows, or a page as text.
        seeds: How often it is repeated by default.
        needs: What ``--data`` must hold, where only a quick run can do without.
        devices: Whether it computes where ``--device`` says; others are of the CPU, and refuse another.
        options: Further options: the default of each, what it is, and where that is another its default in a hurry.
    """

    rows: Callable[[Setting], Iterable[Row]]
    columns: Sequence[str] = ()
    counts: Sequence[str] = ()
    verdict: Callable[[Sequence[Row]], Iterable[Row]] | None = None
    draw: Callable[[Sequence[Row]], Any] | None = None
    seeds: int = 5
    needs: str = ""
    devices: bool = False
    options: Mapping[str, tuple[Any, str] | tuple[Any, str, Any]] = field(default_factory=dict)

    def more(self, given: Mapping[str, Any], *, quick: bool) -> dict[str, Any]:
        """Its further options: those given, and the defaults of the others."""
        defaults = {name: (default, *hurry)[-1 if quick else 0] for name, (default, _, *hurry) in self.options.items()}
        return {name: default if given.get(name) is None else given[name] for name, default in defaults.items()}


def main(studies: Mapping[str, Study], arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, run a study, write its report as the rows come, print them and their means, draw.

    Args:
        studies: By name; where there are several the name is the first word of the command line.
        arguments: The words; those of the process by default.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    if len(studies) == 1:
        ((name, study),) = studies.items()
        _add(parser, study)
        args = parser.parse_args(arguments)
    else:
        several = parser.add_subparsers(dest="study", required=True, metavar="STUDY")
        for name, study in studies.items():
            _add(several.add_parser(name), study)
        args = parser.parse_args(arguments)
        name, study = args.study, studies[args.study]
    if study.needs and args.data is None and not args.quick and not args.join:
        parser.error(f"--data is needed, with {study.needs}; --quick does without")
    if args.device != "cpu" and not study.devices:
        parser.error(f"{name} measures the CPU: --device {args.device} would change nothing")
    given = {each.name: getattr(args, each.name) for each in fields(Setting) if each.name != "more"}
    given["only"] = tuple(given["only"])
    setting = Setting(**given, more=study.more(vars(args), quick=args.quick))
    found = collect(reported(name, study, setting, args.join), args.json)
    tell(found, study.columns)
    if args.figure is not None and study.draw is not None:
        made = study.draw(found)
        args.figure.parent.mkdir(parents=True, exist_ok=True)
        args.figure.write_text(made, encoding="utf-8") if isinstance(made, str) else made.savefig(args.figure)


def _add(parser: argparse.ArgumentParser, study: Study) -> None:
    parser.add_argument("--json", type=Path, help="report to write")
    parser.add_argument("--figure", "--markdown", type=Path, help="figure to draw, or page to write")
    parser.add_argument("--data", type=Path, help="data folder")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes, to try it out")
    repeats = "how often what is random, or a timing, is repeated"
    parser.add_argument("--seeds", "--rounds", "--splits", type=int, default=study.seeds, help=repeats)
    only = "networks, data, methods, ... to run, by name"
    parser.add_argument("--only", "--networks", "--sets", nargs="*", action="extend", default=[], help=only)
    images = "training examples the curvature is summed over"
    parser.add_argument("--images", "--train", "--fitted", type=int, help=images)
    parser.add_argument("--epochs", type=int, help="passes over the data networks are trained for")
    parser.add_argument("--kept", type=Path, help="folder where trained networks are kept")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or mps, where the benchmark computes there")
    parser.add_argument("--resume", type=Path, help="report, or finished rows, of an interrupted run")
    parser.add_argument("--join", nargs="+", type=Path, default=(), help="reports to put together, instead of a run")
    for option, (default, words, *_) in study.options.items():
        parser.add_argument(f"--{option.replace('_', '-')}", type=type(default), help=words)


def reported(name: str, study: Study, setting: Setting, reports: Sequence[Path] = ()) -> Iterator[Row]:
    """The rows as they come or as reports on parts have them, their means, and what they show.

    Args:
        name: Of the study.
        study: Which.
        setting: How much of it is run.
        reports: Reports on its parts, to take the rows from instead of running it.
    """
    found: list[Row] = []
    for row in joined(reports) if reports else shown({"study": name} | row for row in study.rows(setting)):
        found.append(row)
        yield row
    if study.columns:
        means = list(summarised(found, study.counts))
        found += means
        yield from means
    if study.verdict is not None:
        yield from ({"study": name} | row for row in study.verdict(found))


def joined(reports: Sequence[Path]) -> Iterator[Row]:
    """The rows of several reports without their means, each with the commit, command and machine that measured it."""
    for path in reports:
        report = json.loads(path.read_text(encoding="utf-8"))
        source = {key: report[key] for key in ("commit", "command", "machine")}
        yield from ({"source": source} | row for row in report["rows"] if not any(row.get(k) for k in TAKEN_AGAIN))


def tell(found: Sequence[Row], columns: Sequence[str]) -> None:
    """Print the means, a table a part of the study, and what they show."""
    for part, means in grouped((row for row in found if row.get("summary")), "part").items():
        sys.stdout.write(f"\n{part}\n{table(means, columns)}")
    for row in found:
        if "verdict" in row:
            sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")
