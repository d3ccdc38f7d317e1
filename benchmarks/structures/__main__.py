"""Both sides of every problem and structure, each in a process of its own, one after the other."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from benchmarks.measure import QUANTITIES, Row, Step, rows_of, run_isolated, table, write_json
from benchmarks.structures import peer
from benchmarks.structures.problems import PROBLEMS, TRAIN, prepare

PEER = "laplace-torch 0.3"
STEPS = ("fit", "evidence", "tune", "predict")


def main() -> None:
    """Parse the command line, measure, write the report after every structure, print the table."""
    args = _arguments()
    names = [name for name in PROBLEMS if args.only in (None, name)]
    cells = [(name, s) for name in names for s in PROBLEMS[name].structures if args.structure in (None, s)]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, structure in tqdm(cells, unit="structure"):
            path = Path(scratch) / f"{name}.safetensors"
            if not path.exists():
                prepare(name, args.data, path, fitted=args.fitted)
            options = {"problem": name, "path": str(path), "structure": structure, "device": args.device}
            options |= {"timeout": args.timeout, "limit_gib": args.limit_gib}
            sides = {"ours": args.side != "peer", "peers": args.side != "ours"}
            inputs = "" if args.fitted == TRAIN else f"/{args.fitted} inputs"
            rows += measure(f"{name}/{structure}{inputs}", options, **sides)
            write_json(args.json, rows)
    sys.stdout.write(table(rows))


def measure(work: str, options: dict[str, Any], *, ours: bool, peers: bool) -> list[Row]:
    """Rows of one problem and structure.

    Args:
        work: Name of the two, before the step.
        options: What both sides are called with.
        ours: Whether to run lapwing.
        peers: Whether to run the peer.

    Returns:
        For each step and quantity the best of the peer's ways first, then every way that was tried.
    """
    own: tuple[Step, ...] = ()
    if ours:
        from benchmarks.structures.ours import work as ours_work

        own = run_isolated(ours_work, **options)
    sides = {name: run_isolated(peer.work, **options, **way) for name, way in _ways(options) if peers}
    rows: list[Row] = []
    for step in STEPS:
        mine = outcome(own, step)
        theirs = {name: outcome(steps, step) for name, steps in sides.items()}
        rows += best(f"{work}/{step}", mine, theirs)
        for name, found in theirs.items():
            rows += rows_of(f"{work}/{step}", mine, found, name)
    return rows


def outcome(steps: Iterable[Step], name: str) -> Step:
    """The way of doing a step that worked, with a note on those that did not."""
    steps = tuple(steps)
    tried = [step for step in steps if step.name == name]
    failed = [step for step in tried if step.seconds is None]
    worked = [step for step in tried if step.seconds is not None]
    if not tried:
        failed = [step for step in steps if step.seconds is None]
    note = " | ".join(f"{step.name}{step.label}: {step.note}" for step in failed)
    return replace(worked[0], note=note) if worked else Step(name, None, None, note=note or "not run")


def best(work: str, ours: Step, theirs: dict[str, Step]) -> list[Row]:
    """For each quantity the peer's cheapest way, which need not be the same for both."""
    rows: list[Row] = []
    for quantity in QUANTITIES:
        costs = {name: getattr(step, quantity) for name, step in theirs.items() if step.seconds is not None}
        name = min(costs, key=costs.__getitem__, default="no backend ran")
        step = theirs.get(name, Step("", None, None, note="every backend failed, see below"))
        found = rows_of(work, ours, step, f"best of {PEER}: {name.removeprefix(PEER).strip()}")
        rows += [row for row in found if row.quantity == quantity]
    return rows


def _ways(options: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    normed = options["problem"] != "lenet" and not options["structure"].startswith("last_layer")
    ways: list[tuple[str, dict[str, Any]]] = []
    for backend in peer.BACKENDS:
        for frozen in (False, True) if normed else (False,):
            words = [PEER, backend, *(["(default)"] if backend == peer.BACKENDS[0] else [])]
            words += ["norm frozen"] if frozen else []
            ways.append((" ".join(words), {"backend": backend, "frozen": frozen}))
    return ways


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.structures", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="report to write")
    parser.add_argument("--only", choices=tuple(PROBLEMS), help="one network instead of all three")
    parser.add_argument("--structure", choices=tuple(peer.STRUCTURES), help="one structure instead of all")
    parser.add_argument("--data", type=Path, help="data folder; without it data are generated")
    parser.add_argument("--side", choices=("both", "ours", "peer"), default="both", help="run one side only")
    fitted = "inputs that the posteriors are fitted to; fewer lets a slow fit end, and prediction costs the same"
    parser.add_argument("--fitted", type=int, default=TRAIN, help=fitted)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds allowed to one step")
    parser.add_argument("--limit-gib", type=float, default=14.0, help="memory allowed to a process")
    return parser.parse_args()


if __name__ == "__main__":
    main()
