"""Seconds and memory of products and solves against the number of weights (Brack 2023, section 5.1, table 1)."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.command import Setting
from benchmarks.measure import Step, run_isolated
from benchmarks.report import Row, curve, figure, grouped
from studies.full_laplace.costed import work

FORMS = {"quadratic": ("ggn", "hessian", "explicit"), "network": ("ggn", "hessian")}
"""What is differentiated, and in which ways; see ``costed``."""


def rows(setting: Setting) -> Iterator[Row]:
    """One row for each form, way, number of weights, operation and condition number.

    Each form, way and number of weights runs in a process of its own, with a limit on its memory on the CPU; what
    takes it down or takes too long ends up in its rows.
    """
    top = 9 if setting.device.startswith("cuda") else 7
    sizes = (1000,) if setting.quick else tuple(10**k for k in range(1, top + 1))
    for form, ways in FORMS.items():
        for way in ways[:1] if setting.quick else ways:
            for size in (*sizes, 30_000) if way == "explicit" else sizes:
                yield from measured(setting, form, way, size)


def measured(setting: Setting, form: str, way: str, size: int) -> list[Row]:
    """The rows of one process."""
    options: dict[str, Any] = {"form": form, "way": way, "size": size, "device": setting.device}
    steps = run_isolated(work, timeout=200.0, quick=setting.quick, **options)
    d = next((step.facts["d"] for step in steps if "d" in step.facts), size)
    head = {"form": form, "way": way, "device": setting.device, "d": d}
    return [head | row for row in summarised(steps)]


def summarised(steps: Sequence[Step]) -> list[Row]:
    """Mean and standard deviation over the runs of each operation, warm-up left out; why there are none, if so.

    Args:
        steps: Named ``operation`` or ``operation at condition``, labelled by the run; a run labelled ``warm-up`` does
            not count.
    """
    found: list[Row] = []
    for name in dict.fromkeys(step.name for step in steps):
        own = [step for step in steps if step.name == name]
        timed = [step for step in own if step.seconds is not None and step.label != "warm-up"]
        failed = [step for step in own if step.seconds is None]
        seconds = [step.seconds for step in timed if step.seconds is not None]
        operation, _, condition = name.partition(" at condition ")
        found.append(
            {
                "operation": operation,
                "condition": float(condition) if condition else None,
                "seconds": statistics.mean(seconds) if seconds else None,
                "seconds_std": statistics.stdev(seconds) if len(seconds) > 1 else None,
                "runs": len(seconds),
                "peak_mib": max((step.peak_mib for step in timed if step.peak_mib is not None), default=None),
                **own[0].facts,
                "failure": failed[0].note if failed else "",
            }
        )
    return found


def draw(found: Sequence[Row]) -> Any:
    """Seconds against weights: products on the left, solves on the right; a cross where a way fails."""
    made = figure(11.0, 4.2, 2)
    for panel, operation in zip(made.axes, ("product", "solve"), strict=True):
        own = [row for row in found if row["operation"] == operation]
        for (form, way, condition), each in grouped(own, "form", "way", "condition").items():
            line = [row | {"seconds_error": row["seconds_std"]} for row in each if row["seconds"]]
            label = f"{form}, {way}" + (f", κ = {condition:g}" if condition else "")
            curve(panel, line, "d", "seconds", markersize=3, linewidth=1.2, label=label)
        panel.set(xscale="log", yscale="log", xlabel="weights d", ylabel="seconds", title=operation)
        panel.legend(frameon=False, fontsize=7)
    return made
