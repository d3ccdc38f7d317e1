"""The demo from end to end: train, compare, draw, write."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, final

import torch

from lapwing.comparison import Comparison, Row, Tuned, compare, pooled, recipes
from lapwing.demo import figures, text
from lapwing.demo.digits import Digits, Pair, digits, trained
from lapwing.demo.gap import fitted, gap
from lapwing.demo.questions import AT_WEIGHTS, GAP, PLAIN, SHIFT, TEMPERATURE, Answer, answers
from lapwing.evaluation.corruptions import corrupt
from lapwing.ground.errors import ConfigError
from lapwing.ground.progress import track
from lapwing.ground.version import installed
from lapwing.likelihoods import Categorical, Gaussian
from lapwing.show.report import write_json, write_report
from lapwing.tuning import EvidenceGradient

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@final
@dataclass(frozen=True)
class Demo:
    """What the demo leaves.

    Args:
        digits: The digits, over all seeds.
        gap: The curve with a gap, over all seeds.
        answers: What came of the questions.
        results: The numbers, JSON.
        report: The page, HTML.
        seconds: How long it took.
    """

    digits: Comparison
    gap: Comparison
    answers: tuple[Answer, ...]
    results: Path
    report: Path
    seconds: float


@final
@dataclass(frozen=True)
class Size:
    """How much of everything.

    Args:
        train: Training digits.
        validation: Validation digits.
        test: Test digits, and most unseen ones.
        epochs: Passes over the training digits.
        steps: Training steps on the curve.
    """

    train: int = 300
    validation: int = 200
    test: int = 750
    epochs: int = 200
    steps: int = 1000


DRAWS = 64
"""Functions drawn to score many labels at once."""

NAIVE = "naive: diagonal"
"""The diagonal, whose error bars are too wide on the data: every other method has a better NLL there."""

QUICK = Size(train=50, validation=50, test=50, epochs=15, steps=100)
"""Enough to see that everything runs, too little for the numbers to mean anything."""


def run(out: Path, *, seeds: int = 5, quick: bool = False, progress: bool = False) -> Demo:
    """Compare every method on digits of which three are unseen, and on a curve with a gap; write what came of it.

    Args:
        out: Folder for ``results.json``, ``report.html`` and ``figures/``, made if need be. The numbers so far are
            written after each seed.
        seeds: Splits, sets of unseen digits and networks, from 0.
        quick: Whether to train for a moment only.
        progress: Whether to show progress bars.

    Raises:
        ConfigError: If there are no seeds, or scikit-learn, matplotlib or jinja2 is not installed.

    Cost:
        About a quarter of a minute a seed on two cores; a few seconds if quick.
    """
    if seeds < 1:
        raise ConfigError("at least one seed", f"seeds={seeds}", "seeds=5")
    start, size = time.perf_counter(), QUICK if quick else Size()
    results = out / "results.json"
    first, points = digits(0, size.train, size.validation, size.test), gap(0)
    runs: list[Comparison] = []
    curves: list[Comparison] = []
    for seed in track(range(seeds), "seeds", unit="seeds", progress=progress):
        runs = [pooled([*runs, compare_digits(seed, size, progress)])]
        curves = [pooled([*curves, compare_curves(seed, size, progress)])]
        write_json(text.page(runs[0], curves[0], first, seed + 1), results)
    total, curve = runs[0], curves[0]
    page = text.page(total, curve, first, seeds)
    page["figures"] = saved(drawn(total, first), out)
    page["sections"][0]["figures"] = saved({"bands": figures.bands(tuned(curve, "default"), points)}, out)
    seconds = time.perf_counter() - start
    write_json(page | {"about": about(seeds, seconds)}, results)
    return Demo(total, curve, answers(total, curve), results, write_report(results), seconds)


def compare_digits(seed: int, size: Size, progress: bool) -> Comparison:
    """Every method on one split of the digits; the full covariance, which costs more than all others, is left out."""
    data = digits(seed, size.train, size.validation, size.test)
    found = compare(
        trained(data.train, seed, size.epochs),
        data.train,
        data.test,
        methods={name: recipe for name, recipe in recipes(Categorical()).items() if name != "full"},
        ood=data.unseen,
        shifts={SHIFT: rotated(data.test, seed)},
        validation=data.validation,
        tunings={AT_WEIGHTS: EvidenceGradient()},
        draws=DRAWS,
        progress=progress,
    )
    return in_order(found)


def rotated(data: Pair, seed: int) -> Pair:
    """The digits as a careless scanner has them, each turned by 25 degrees to one side or the other.

    Args:
        data: Images and labels.
        seed: Of the sides.
    """
    images, labels = data
    return corrupt(images, "rotation", 4, generator=torch.Generator().manual_seed(seed)), labels


def in_order(comparison: Comparison) -> Comparison:
    """The same with its rows as they were asked for, by structure, and no reference: the page is about structures."""
    return replace(comparison, reference=None)


def compare_curves(seed: int, size: Size, progress: bool) -> Comparison:
    """Every method on the curve with a gap; the diagonal, whose error bars are too wide on the data, says so.

    The held-out points tell the noise of the network alone. Posteriors do without, each tuned by its evidence.
    """
    data = gap(seed)
    names = {name: NAIVE if name == "diagonal" else name for name in recipes(Gaussian())}
    found = compare(
        fitted(data.train, seed, size.steps),
        data.train,
        data.test,
        ood=data.unseen,
        shifts={GAP: data.unseen},
        validation=data.validation,
        methods={names[name]: Tuned(recipe) for name, recipe in recipes(Gaussian()).items()},
        progress=progress,
    )
    return in_order(found)


def drawn(comparison: Comparison, data: Digits) -> dict[str, Figure]:
    """The figures of the digits, from the predictors of the first seed."""
    chosen = [
        comparison.row(*PLAIN),
        comparison.row(*TEMPERATURE),
        comparison.row("last layer", "validation"),
        comparison.row("last layer", "default"),
    ]
    chosen = [row for row in chosen if row.predictor is not None]
    return {
        "scores": figures.scores(comparison),
        "reliability": figures.reliability(chosen, data),
        "confidence": figures.confidence(chosen, data),
        "evidence": figures.evidence(tuned(comparison, AT_WEIGHTS)),
        "rejection": figures.rejection([*chosen, comparison.row("KFAC", "default")], data),
        "choice": figures.choice(comparison.row("KFAC", "validation"), comparison.row("KFAC", "default")),
    }


def tuned(comparison: Comparison, way: str) -> list[Row]:
    """The rows tuned in one way that ran."""
    return [row for row in comparison.rows if row.tuned_by == way and row.predictor is not None]


def saved(drawings: dict[str, Figure], out: Path) -> list[dict[str, str | bool]]:
    """The figures as SVG files, and what the page says of each."""
    (out / "figures").mkdir(parents=True, exist_ok=True)
    entries: list[dict[str, str | bool]] = []
    for name, figure in drawings.items():
        figure.savefig(out / "figures" / f"{name}.svg", transparent=True)
        title, caption = text.CAPTIONS[name]
        entries.append(
            {"file": f"figures/{name}.svg", "title": title, "caption": caption, "wide": bool(figure.get_figwidth() > 8)}
        )
    return entries


def about(seeds: int, seconds: float) -> dict[str, str | int | float]:
    """What the numbers depend on."""
    return {
        "lapwing": installed(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "seeds": seeds,
        "seconds": round(seconds, 1),
    }
