"""Networks of ten million weights, last layers of very many outputs, dense outputs: who runs at all, seconds, bytes.

    python -m benchmarks.wide --json FILE --data DIR [--images 500] [--only ours kfac ...]

``resnet18``: ResNet-18 at its initial weights on CIFAR images; ``stem``: the same with a first convolution for small
images, whose last ones have 4608 inputs. ``images``: 2048 features to c classes; ``tokens``: a decoder of one layer,
768 features to c tokens. ``segmentation``: thirty images of 32 x 32 pixels, three classes. Every side runs in a process
of its own, which also times plain passes over the same batches: ``forwards`` are a step's seconds over those of a
forward pass, ``passes`` over a forward and a backward pass. ``--only`` takes all cases that have all of its words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks import heads, wide_sides
from benchmarks.command import Setting, Study, main
from benchmarks.measure import Step, run_isolated
from benchmarks.report import Row

IMAGES = 500
LONGEST, PATIENCE = 300.0, 120.0
"""Seconds a step of ours may take, and one of the peers."""

LIMIT = 8.0
"""GiB that a side may take."""


@dataclass(frozen=True)
class Case:
    """One process.

    Args:
        network: What is fitted.
        side: By whom.
        structure: How the posterior is held.
        work: What the process does.
        options: Passed to it; how many images are the command line's to choose.
    """

    network: str
    side: str
    structure: str
    work: Callable[..., None]
    options: dict[str, Any] = field(default_factory=dict)


def cases(setting: Setting) -> Iterator[Case]:
    """All there are, the long ones last."""
    images = {"folder": str(setting.data or ""), "images": setting.images or (20 if setting.quick else IMAGES)}
    for structure in ("last layer", "kfac", "diagonal", "sampled"):
        yield Case("resnet18", "ours", structure, wide_sides.ours, images | {"structure": structure})
    for structure in ("kfac", "diagonal"):
        given = images | {"structure": structure}
        yield Case("resnet18", "laplace-torch", structure, wide_sides.laplace_torch, given)
    yield Case("resnet18", "curvlinops", "kfac", wide_sides.curvlinops, images)
    for structure in ("last layer", "kfac", "diagonal"):
        given = {"structure": structure, "images": 3 if setting.quick else 30}
        yield Case("segmentation", "ours", structure, heads.segmentation, given)
    few = setting.quick
    for classes in (100,) if few else (100, 1000, 10_000):
        given = {"head": "images", "classes": classes, "examples": 100 if few else 2000}
        yield Case(f"images c={classes}", "ours", "kfac", heads.ours, given)
    given = {"classes": 20 if few else 1000, "examples": 50 if few else 2000}
    for structure in ("kron", "diag"):
        yield Case("images c=1000", "laplace-torch", structure, heads.laplace_torch, given | {"structure": structure})
    yield Case("images c=1000", "curvlinops", "kfac", heads.curvlinops, given)
    for classes in (100,) if few else (100, 1000, 10_000, 50_257):
        given = {"head": "tokens", "classes": classes, "examples": 1000 if few else 20_000}
        yield Case(f"tokens c={classes}", "ours", "kfac", heads.ours, given)
    given = images | {"structure": "kfac", "stem": True}
    yield Case("stem", "ours", "kfac", wide_sides.ours, given)


def rows(setting: Setting) -> Iterator[Row]:
    """Every case, step by step."""
    for case in cases(setting):
        words = {*case.network.split(), case.side, case.structure}
        if not words.issuperset(setting.only):
            continue
        patience = LONGEST if case.side == "ours" else PATIENCE
        steps = run_isolated(case.work, timeout=patience, limit_gib=LIMIT, **case.options)
        head = {"network": case.network, "side": case.side, "structure": case.structure}
        counts = {key: case.options[key] for key in ("images", "examples", "classes") if key in case.options}
        yield from (head | counts | row for row in told(steps))


def told(steps: tuple[Step, ...]) -> Iterator[Row]:
    """A row a step, and of a whole fit what its decompositions do not take."""
    whole = {step.name: step for step in steps}
    parts = whole.get("decompositions")
    for step in steps:
        if step.name == "fit" and parts is not None and step.seconds and parts.seconds:
            step = replace(step, peak_mib=max(step.peak_mib or 0.0, parts.peak_mib or 0.0))
            without = replace(step, name="fit without decompositions", seconds=step.seconds - parts.seconds)
            yield row_of(without, whole)
        yield row_of(step, whole)


def row_of(step: Step, whole: dict[str, Step]) -> Row:
    """One step, its seconds also in plain passes over the data."""
    row: Row = {"step": step.name, "seconds": step.seconds, "peak_mib": step.peak_mib}
    for name, key in (("forward", "forwards"), ("pass", "passes")):
        plain = whole[name].seconds if name in whole else None
        if plain and step.seconds is not None:
            row[key] = step.seconds / plain
    return row | {key: words for key, words in (("label", step.label), ("note", step.note)) if words}


STUDY = Study(rows)

if __name__ == "__main__":
    main({"wide": STUDY})
