"""Test scores against what ELLA is given: training images in G, its prior variance, and the rank K.

    python -m studies.ella stopping --data DIR --json FILE [--figure FILE]
    python -m studies.ella rank --data DIR --json FILE

*Stopping*: the test NLL by training images and prior variance, none of it tuned, and where early stopping by the
validation images ends under the paper's prior. *Rank*: the leading K of the same directions, stopped early by the
validation images.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.report import Row, figure, grouped
from studies.ella.setting import RANK, Ella, predicted, scores

GRID = (0, 100, 300, 500, 700, 1000)
"""Training images in G."""

VARIANCES = (1e-4, 1e-3, 1e-2, 0.2)
"""Of the prior; the last is the paper's rule."""

RANKS = (1, 2, 5, 10, 15, 20, 30, 50)


def stopping(setting: Setting) -> Iterator[Row]:
    """A row for each number of images and prior variance, and those of early stopping and of the network alone."""
    ella = Ella.read(setting)
    yield setting.resumed({"part": "network alone"}, partial(alone, ella))
    for images in (0, 4, 12) if setting.quick else GRID:
        for variance in VARIANCES:
            case: Row = {"part": "grid", "training_images": images, "variance": variance}
            yield setting.resumed(case, partial(grown, ella, images, variance))
    yield setting.resumed({"part": "stopped early"}, partial(stopped, ella, RANK))


def rank(setting: Setting) -> Iterator[Row]:
    """A row for each rank."""
    ella = Ella.read(setting)
    for k in (1, 3) if setting.quick else RANKS:
        yield setting.resumed({"part": "rank", "rank": k}, partial(stopped, ella, k))


def alone(ella: Ella) -> Row:
    """Scores of the network without a posterior."""
    return scores(ella.test.mean.softmax(-1), ella.test.labels)


def grown(ella: Ella, images: int, variance: float) -> Row:
    """Scores with so many training images in G under a prior variance."""
    within = ella.compression(images, precision=1 / variance)
    return scores(predicted(within, ella.test), ella.test.labels)


def stopped(ella: Ella, k: int) -> Row:
    """Scores where the validation images end it, under the paper's prior, and those with all images."""
    images = ella.stopped_at(k)
    labels = ella.test.labels
    early = predicted(ella.compression(images, rank=k), ella.test)
    everything = predicted(ella.compression(ella.amount.images, rank=k), ella.test)
    row: Row = {"stopped_at": float(images), "nll_all": lw.metrics.nll(everything, labels)}
    return row | scores(early, labels)


def draw_stopping(found: Sequence[Row]) -> Any:
    """Test NLL by training images, a line a prior variance."""
    made = figure(5.0, 4.0, 1)
    (panel,) = made.axes
    grid = [row for row in found if row.get("part") == "grid"]
    for variance, own in grouped(grid, "variance").items():
        points = [(row["training_images"], row["nll"]) for row in own]
        panel.plot(*zip(*points, strict=True), marker="o", label=f"σ₀² = {variance:g}")
    (plain,) = [row for row in found if row.get("part") == "network alone"]
    panel.axhline(plain["nll"], color="0.5", linestyle="--", label="network alone")
    panel.set(xlabel="training images in G", ylabel="test NLL, nats", ylim=(0.2, 0.6))
    panel.legend(frameon=False, fontsize=8)
    return made
