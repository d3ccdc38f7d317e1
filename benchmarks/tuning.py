"""Seconds of tuning by held-out data over seconds of one prediction of the same data, in one process.

    python -m benchmarks.tuning --json FILE [--data DIR] [--images 300] [--rounds 5]

LeNet on MNIST and the ResNet-20 on CIFAR-10 (of generated images without ``--data``), KFAC, medians of the rounds.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Iterator
from functools import partial

import torch

import lapwing as lw
from benchmarks.command import Setting, Study, main
from benchmarks.problems import PROBLEMS
from benchmarks.report import Row, beside, timed

FITTED = 200
TRAINED = {"lenet": (2000, 3), "resnet20": (500, 1)}
"""Examples the networks are trained on, and how often."""


def rows(setting: Setting) -> Iterator[Row]:
    """Seconds of each, and their ratio."""
    images, rounds = (20, 1) if setting.quick else (setting.images or 300, setting.seeds)
    for name in setting.among(TRAINED, ("lenet",) if setting.quick else ()):
        train, epochs = (100, 1) if setting.quick else TRAINED[name]
        data = PROBLEMS[name].data(setting.data, train, images)
        model = PROBLEMS[name].model(setting.data, data, epochs).to(setting.device)
        data = data.to(setting.device)
        posterior = lw.Laplace(lw.Categorical(), structure=lw.KFAC()).fit(model, data.head(FITTED).train)
        posterior.predict(data.x_test[:2])
        works = {"predict": partial(posterior.predict, data.x_test), "tune": partial(lw.tune, posterior, data.test)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            times = [{key: timed(partial(finished, work))[1] for key, work in works.items()} for _ in range(rounds)]
        tuned, predicted = (statistics.median(time[key] for time in times) for key in ("tune", "predict"))
        note = f"{images} images; medians of {rounds}"
        yield beside(f"{name}/kfac/tune", "seconds", tuned, predicted, "predict of the same images", note)


def finished(work: Callable[[], object]) -> None:
    """Do a piece of work, until a GPU has done with it."""
    work()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


STUDY = Study(rows, devices=True)

if __name__ == "__main__":
    main({"tuning": STUDY})
