"""Ten networks that people have: what fitting, tuning, predicting, saving and loading cost, and what is said meanwhile.

    python -m benchmarks.architectures --json benchmarks/results/architectures.json --markdown docs/costs.md
        [--only resnet18 gpt2 kfac ...] [--quick]

Each network is at its initial weights, on generated data, with the last layer's posterior and with ``KFAC`` over all
weights. Each runs in a process of its own, one thread, which also times a forward and a backward pass over the same
data. Beside the seconds of a step stand those that were forecast before it, and the longest time in which nothing was
said: a terminal is imitated, and every writing to it and to the log is noted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from benchmarks import architectures_sides
from benchmarks.command import Setting, Study, main
from benchmarks.costs import PAGE
from benchmarks.measure import Step, run_isolated
from benchmarks.report import Row
from benchmarks.table import markdown, with_tables

PATIENCE = 900.0
"""Seconds a step may take."""

LIMIT = 12.0
"""GiB that a process may take."""

POSTERIORS = ("last layer", "kfac")

COLUMNS = {
    "network": "network",
    "posterior": "posterior",
    "step": "step",
    "seconds": "seconds",
    "passes": "passes",
    "peak_mib": "peak MiB",
    "forecast": "forecast in seconds",
    "silence": "longest silence in seconds",
}
"""What the page shows of a row, and what it calls it."""


def rows(setting: Setting) -> Iterator[Row]:
    """Every network with every posterior, step by step."""
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in setting.among(architectures_sides.NETWORKS):
        for posterior in setting.among(POSTERIORS):
            options = {"network": name, "posterior": posterior, "quick": setting.quick}
            steps = run_isolated(architectures_sides.ours, timeout=PATIENCE, limit_gib=LIMIT, **options)
            yield from (case_of(name, posterior, step, steps) for step in steps)


def case_of(name: str, posterior: str, step: Step, steps: Sequence[Step]) -> Row:
    """A step as a row, its seconds also in forward and backward passes over the data of the fit."""
    row: Row = {"network": name, "posterior": posterior, "step": step.name}
    row |= {"seconds": step.seconds, "peak_mib": step.peak_mib, **step.facts}
    plain = next((each.seconds for each in steps if each.name == "pass"), None)
    if plain and step.seconds is not None:
        row["passes"] = step.seconds / plain
    return row | {key: words for key, words in (("label", step.label), ("note", step.note)) if words}


def page(rows: Sequence[Row]) -> str:
    """The page of costs with the table of the networks made anew."""
    shown = [row | {"step": f"{row['step']}: {row['note']}"} if row.get("note") else row for row in rows]
    return with_tables(PAGE.read_text(encoding="utf-8"), [markdown(shown, COLUMNS)])


STUDY = Study(rows, draw=page)

if __name__ == "__main__":
    main({"architectures": STUDY})
