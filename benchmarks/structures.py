"""Structures of the posterior, lapwing against laplace-torch: fit, evidence, tune, predict.

    python -m benchmarks.structures --json FILE [--only lenet|resnet20|transformer kfac ... ours|peer] [--data DIR]

Both sides of every problem and structure run in a process of their own, one after the other. ``--fitted`` inputs are
what the posteriors are fitted to: fewer let a slow fit end, and prediction costs the same.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.command import Setting, Study, main
from benchmarks.measure import QUANTITIES, Step, rows_of, run_isolated
from benchmarks.problems import TRAIN, prepare
from benchmarks.report import Row
from benchmarks.sides import BACKENDS, STRUCTURES, ours, peer

PEER = "laplace-torch 0.3"
STEPS = ("fit", "evidence", "tune", "predict")
SMALL = tuple(name for name in STRUCTURES if name != "full")
CELLS = {"lenet": tuple(STRUCTURES), "resnet20": SMALL, "transformer": SMALL}
"""What is fitted to each problem."""


def rows(setting: Setting) -> Iterator[Row]:
    """Every problem and structure."""
    fitted, quick = setting.images or TRAIN, setting.quick
    with tempfile.TemporaryDirectory() as scratch:
        for name in setting.among(CELLS, ("lenet",) if quick else ()):
            path = Path(scratch) / f"{name}.safetensors"
            few = {"train": 100, "epochs": 1} if quick else {}
            prepare(name, setting.data, path, fitted=fitted, **few)
            for structure in setting.among(CELLS[name], ("kfac",) if quick else ()):
                options = {"problem": name, "path": str(path), "structure": structure, "device": setting.device}
                inputs = "" if fitted == TRAIN else f"/{fitted} inputs"
                sides = setting.among(("ours", "peer"))
                yield from measure(f"{name}/{structure}{inputs}", options, sides, quick=quick)


def measure(work: str, options: dict[str, Any], sides: tuple[str, ...], *, quick: bool) -> Iterator[Row]:
    """Rows of one problem and structure.

    Args:
        work: Name of the two, before the step.
        options: What both sides are called with.
        sides: Which run.
        quick: Whether one of the peer's ways is enough.

    Yields:
        For each step and quantity the best of the peer's ways first, then every way that was tried.
    """
    own = run_isolated(ours, **options) if "ours" in sides else ()
    tried = _ways(options)[: 1 if quick else None] if "peer" in sides else []
    others = {name: run_isolated(peer, **options, **way) for name, way in tried}
    for step in STEPS:
        mine = outcome(own, step)
        theirs = {name: outcome(steps, step) for name, steps in others.items()}
        yield from best(f"{work}/{step}", mine, theirs)
        for name, found in theirs.items():
            yield from rows_of(f"{work}/{step}", mine, found, name)


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
        rows += [row for row in found if row["quantity"] == quantity]
    return rows


def _ways(options: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    normed = options["problem"] != "lenet" and not options["structure"].startswith("last_layer")
    ways: list[tuple[str, dict[str, Any]]] = []
    for backend in BACKENDS:
        for frozen in (False, True) if normed else (False,):
            words = [PEER, backend, *(["(default)"] if backend == BACKENDS[0] else [])]
            words += ["norm frozen"] if frozen else []
            ways.append((" ".join(words), {"backend": backend, "frozen": frozen}))
    return ways


STUDY = Study(rows, devices=True)

if __name__ == "__main__":
    main({"structures": STUDY})
