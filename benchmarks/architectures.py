"""Ten networks that people have: what fitting, tuning, predicting, saving and loading cost, and what is said meanwhile.

    python -m benchmarks.architectures --json benchmarks/results/architectures.json --markdown docs/costs.md
        [--only resnet18 gpt2 kfac ...] [--quick]

Each network is at its initial weights, on generated data, with the last layer's posterior and with ``KFAC`` over all
weights. Each runs in a process of its own, one thread, which also times a forward and a backward pass over the same
data. A terminal is imitated, and what bars and the log write to it is noted: beside the seconds of a step stand those
that its longest bar first said were left and those that came, and the longest time in which nothing was said.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from benchmarks import architectures_sides
from benchmarks.command import Setting, Study, main
from benchmarks.costs import PAGE
from benchmarks.measure import Step, run_isolated
from benchmarks.report import Row, grouped
from benchmarks.table import markdown, with_tables

PATIENCE = 2400.0
"""Seconds after which a process that says nothing is ended; steps are interrupted long before."""

LIMIT = 16.0
"""GiB that a process may take."""

POSTERIORS = ("last layer", "kfac")

STEPS = ("fit", "predict 1", "predict 64", "save", "load", "tune")
"""In the order in which they are done."""

COLUMNS = {
    "network": "network",
    "posterior": "posterior",
    **{step: f"{step}, s (passes)" for step in STEPS},
    "peak_mib": "peak MiB",
    "forecast": "left when first told, and what came, s",
    "silence": "longest silence, s",
}
"""What a line of the page shows, and what it calls it."""


def rows(setting: Setting) -> Iterator[Row]:
    """Every network with every posterior, step by step."""
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in setting.among(architectures_sides.NETWORKS):
        for posterior in setting.among(POSTERIORS):
            options = {"network": name, "posterior": posterior, "quick": setting.quick, "device": setting.device}
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
    lines = [line_of(found) for found in grouped(rows, "network", "posterior").values()]
    return with_tables(PAGE.read_text(encoding="utf-8"), [markdown(lines, COLUMNS)])


def line_of(steps: Sequence[Row]) -> Row:
    """What the page shows of one network with one posterior.

    Args:
        steps: Its rows.
    """
    line: Row = {name: steps[0][name] for name in ("network", "posterior")}
    told: list[tuple[float, float]] = []
    for row in steps:
        if row["seconds"] is None:
            line[row["step"]] = row["note"]
        elif "passes" in row:
            stopped = ", interrupted" if row.get("interrupted") else ""
            line[row["step"]] = f"{row['seconds']:.2g} ({row['passes']:.2g}{stopped})"
        if "forecast" in row:
            told.append((row["forecast"], row["came"]))
    for name in ("peak_mib", "silence"):
        line[name] = max((row[name] for row in steps if row.get(name) is not None), default=None)
    if told:
        left, came = max(told)
        line["forecast"] = f"{left:.0f}, {came:.0f}"
    return line


STUDY = Study(rows, draw=page, devices=True)

if __name__ == "__main__":
    main({"architectures": STUDY})
