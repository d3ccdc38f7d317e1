"""Seconds of tuning by held-out data over seconds of one prediction of the same data, in one process.

    python -m benchmarks.tuning --json FILE [--data DIR] [--images 300] [--rounds 5]

LeNet on MNIST and the ResNet-20 on CIFAR-10 (of generated images without ``--data``), KFAC, medians of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from torch import nn

import lapwing as lw
from benchmarks.data import CHECKPOINTS, Split, cifar10, generated_images, mnist, train
from benchmarks.measure import Row, write_json
from benchmarks.networks import ResNet, lenet

FITTED = 200


def problems(folder: Path | None) -> Iterator[tuple[str, nn.Module, Split]]:
    """The two networks with their data."""
    digits = mnist(folder).head(2000, 2000) if folder else generated_images(1, 28, train=2000, test=2000)
    yield "lenet", train(lenet(), digits, epochs=3), digits
    if folder is None:
        images = generated_images(3, 32, train=500, test=1000)
        yield "resnet20", train(ResNet(3), images, epochs=1), images
        return
    checkpoint = CHECKPOINTS["resnet20"]
    yield "resnet20", checkpoint.load(folder), cifar10(folder, checkpoint)


def rows(folder: Path | None, images: int, rounds: int) -> Iterator[Row]:
    """Seconds of each, and their ratio."""
    for name, model, data in problems(folder):
        posterior = lw.Laplace(lw.Categorical(), structure=lw.KFAC()).fit(
            model, (data.x_train[:FITTED], data.y_train[:FITTED])
        )
        held_out = data.x_test[:images], data.y_test[:images]
        posterior.predict(held_out[0][:2])
        predict, tune = partial(posterior.predict, held_out[0]), partial(lw.tune, posterior, held_out)
        times: dict[str, list[float]] = {"tune": [], "predict": []}
        for _ in range(rounds):
            times["predict"].append(_seconds(predict))
            times["tune"].append(_seconds(tune))
        tuned, predicted = (statistics.median(times[key]) for key in ("tune", "predict"))
        note = f"{images} images; medians of {rounds}"
        yield Row(f"{name}/kfac/tune", "seconds", tuned, predicted, "predict of the same images", note)


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        work()
    return time.perf_counter() - start


def main() -> None:
    """Parse the command line, measure, write the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuning", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="report to write")
    parser.add_argument("--data", type=Path, help="data folder; generated images without one")
    parser.add_argument("--images", type=int, default=300, help="images that are tuned on and predicted")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is timed")
    args = parser.parse_args()
    found = []
    for row in rows(args.data, args.images, args.rounds):
        found.append(row)
        print(f"{row.work}: {row.ours:.3g} s, predict {row.peer:.3g} s, ratio {row.ratio:.3g}")
        write_json(args.json, found)


if __name__ == "__main__":
    main()
