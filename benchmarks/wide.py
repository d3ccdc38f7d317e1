"""A network of eleven million weights: who can fit it, in how many passes over the data, and in how many bytes.

    python -m benchmarks.wide --json FILE --data DIR [--images 500] [--only ours kfac ...]

ResNet-18 at its initial weights on CIFAR images, one label drawn an example. Every side runs in a process of its own,
which also times a plain forward and backward pass over the same batches: ``passes`` is a step's seconds over that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from benchmarks.command import Setting, Study, main
from benchmarks.measure import Step, run_isolated
from benchmarks.report import Row
from benchmarks.wide_sides import curvlinops, laplace_torch, ours

IMAGES = 500
LONGEST = 240.0
"""Seconds a step may take."""

SIDES: dict[str, tuple[Callable[..., None], tuple[str, ...]]] = {
    "ours": (ours, ("kfac", "diagonal", "sampled")),
    "laplace-torch": (laplace_torch, ("kfac", "diagonal")),
    "curvlinops": (curvlinops, ("kfac",)),
}


def rows(setting: Setting) -> Iterator[Row]:
    """Every side and structure, step by step, and what is to be shown of ours."""
    images = setting.images or (20 if setting.quick else IMAGES)
    for side in setting.among(SIDES):
        work, structures = SIDES[side]
        for structure in setting.among(structures):
            options = {"structure": structure, "folder": str(setting.data or ""), "images": images}
            steps = run_isolated(work, timeout=LONGEST, **options)
            head = {"side": side, "structure": structure, "images": images}
            yield from (head | row for row in told(steps))


def told(steps: tuple[Step, ...]) -> Iterator[Row]:
    """A row a step, and of a whole fit what its decompositions do not take."""
    whole = {step.name: step for step in steps}
    passing, parts = whole["pass"].seconds if "pass" in whole else None, whole.get("decompositions")
    for step in steps:
        if step.name == "fit" and parts is not None and step.seconds and parts.seconds:
            peak = max(step.peak_mib or 0.0, parts.peak_mib or 0.0)
            step = replace(step, peak_mib=peak)
            yield row_of(
                replace(step, name="fit without decompositions", seconds=step.seconds - parts.seconds), passing
            )
        yield row_of(step, passing)


def row_of(step: Step, passing: float | None) -> Row:
    """One step, its seconds also in plain passes over the data."""
    passes = step.seconds / passing if step.seconds is not None and passing else None
    row = {"step": step.name, "seconds": step.seconds, "passes": passes, "peak_mib": step.peak_mib}
    return row | {key: words for key, words in (("label", step.label), ("note", step.note)) if words}


STUDY = Study(rows)

if __name__ == "__main__":
    main({"wide": STUDY})
