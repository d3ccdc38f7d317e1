"""KFAC of a ResNet-20 with products in float64 and in float32: seconds beside a gradient pass, and test loss.

    python -m benchmarks.precision --data DIR --json FILE [--images 1000] [--rounds 3]

Seconds are those of the processor on one thread, ``over_gradient`` over those of a plain forward and backward pass over
the same images, in turns. The loss is that of posteriors tuned on held-out images. Where float64 runs at a sixty-fourth
of float32, as on consumer GPUs, the gain is larger.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import lapwing as lw
from benchmarks.command import Setting, Study, main
from benchmarks.data import generator
from benchmarks.problems import batches, gradient
from benchmarks.report import Row
from benchmarks.tasks import Task, probabilities

CURVATURES: dict[str, dict[str, Any]] = {"drawn label": {"curvature": lw.MCFisher()}, "exact": {}}
"""Options of ``Laplace``, by name."""

WORDS = ("double", "single")

BATCH = 250
"""Images of a batch."""


def rows(setting: Setting) -> Iterator[Row]:
    """Seconds of each curvature in both precisions, and the losses."""
    torch.set_num_threads(1)
    task = Task.read("ella_resnet20", setting, 1000)
    data = batches(*task.train, BATCH)
    for name in setting.among(CURVATURES):
        yield from timings(task, data, name, setting.repeats)
    if not setting.only or "loss" in setting.only:
        yield from losses(task)


def timings(task: Task, data: list[tuple[Tensor, Tensor]], name: str, repeats: range) -> Iterator[Row]:
    """Seconds of the fits and of a gradient pass, medians over turns."""
    taken: dict[str, list[float]] = {"gradient": [], "double": [], "single": []}
    for _ in repeats:
        taken["gradient"].append(seconds(lambda: gradient(task.model, data)))
        for word in WORDS:
            recipe = recipe_of(task, name, word)
            taken[word].append(seconds(lambda recipe=recipe: recipe.fit(task.model, data, generator=generator())))
    plain = statistics.median(taken["gradient"])
    for word in WORDS:
        own = statistics.median(taken[word])
        row: Row = {"network": task.name, "images": len(task.train[1]), "curvature": name, "precision": word}
        yield row | {"seconds": own, "gradient_seconds": plain, "over_gradient": own / plain}


def losses(task: Task) -> Iterator[Row]:
    """Test loss of each precision's posterior, its prior tuned on held-out images."""
    for word in WORDS:
        fitted = recipe_of(task, "drawn label", word).fit(task.model, task.train, generator=generator())
        # In limited seconds each precision would look at other examples.
        tuned = lw.tune(fitted, lw.Validation(task.held_out, seconds=None))
        probs = probabilities(tuned, task.test[0])
        nll = -probs.gather(1, task.test[1][:, None]).log().mean()
        prior = float(tuned.prior_precisions[0])
        yield {"network": task.name, "precision": word, "prior_precision": prior, "test_nll": float(nll)}


def recipe_of(task: Task, name: str, word: Any) -> lw.Laplace:
    """KFAC with a curvature, its products in this precision."""
    return lw.Laplace(task.likelihood, structure=lw.KFAC(), precision=word, **CURVATURES[name])


def seconds(work: Callable[[], object]) -> float:
    """Those of the processor."""
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    main({"precision": Study(rows, seeds=3)})
