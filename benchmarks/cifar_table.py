"""Two trained ResNet-20 on CIFAR-10: what each structure does to calibration, tuned in three ways.

    python -m benchmarks.cifar_table --data DIR --json FILE --markdown docs/cifar10.md

The curvature is that of the training images in the data folder, part of the 50 000 the networks were trained
on. The first 300 test images tune what is tuned by validation; every method is scored on the other 717.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch.nn.functional as F
from torch import Tensor

import lapwing as lw
from benchmarks.command import Setting, Study, main
from benchmarks.report import Row, command, grouped, timed
from benchmarks.table import averaged, markdown
from benchmarks.tasks import Task, marginal, probabilities
from lapwing.evaluation.baselines import Map

NETWORKS = {"resnet20": "ResNet-20, zero-padded shortcuts", "ella_resnet20": "ResNet-20 of the ELLA paper"}
IMAGES = 5438
RECIPES: dict[str, Callable[[], lw.Laplace]] = {
    "last layer": lambda: lw.Laplace(lw.Categorical(), structure=lw.Full(), weights=lw.LastLayer()),
    "diagonal": lambda: lw.Laplace(lw.Categorical(), structure=lw.Diagonal()),
    "KFAC": lambda: lw.Laplace(lw.Categorical(), structure=lw.KFAC()),
}
COLUMNS = {
    "value": "tuned to", "accuracy": "accuracy", "nll": "NLL", "difference": "NLL − plain", "ece": "ECE",
    "brier": "Brier", "fit_seconds": "fit s", "tune_seconds": "tune s", "predict_seconds": "predict s",
}  # fmt: skip


def rows(setting: Setting) -> Iterator[Row]:
    """Every method on every network, the plain network first."""
    for name in setting.among(NETWORKS, tuple(NETWORKS)[:1] if setting.quick else ()):
        task = Task.read(name, setting, IMAGES)
        network = Map(task.model)
        plain, seconds = timed(lambda task=task, by=network: probabilities(by, task.test[0]))
        head: Row = {"network": name, "images": len(task.train[1])}
        yield head | {"method": "plain", "tuned": "", "predict_seconds": seconds} | scored(plain, plain, task)
        if not setting.quick:
            scaled, seconds = timed(lambda task=task, by=network: by.calibrated(task.held_out))
            row: Row = {"method": "temperature scaling", "tuned": "validation", "tune_seconds": seconds}
            row["value"] = float(scaled.temperature.temperature)
            yield head | row | scored(probabilities(scaled, task.test[0]), plain, task)
        for method in setting.among(RECIPES, ("last layer",) if setting.quick else ()):
            for row in tuned(task, method, plain):
                yield head | {"method": method} | row


def tuned(task: Task, method: str, plain: Tensor) -> Iterator[Row]:
    """A posterior as it is tuned in each way."""
    fitted, fitting = timed(lambda: RECIPES[method]().fit(task.model, task.train, progress=True))
    evidence = {"evidence at the weights": lw.EvidenceGradient()}
    for name, way in ({"default": None} | evidence | {"validation": lw.Validation(task.held_out)}).items():
        found, tuning = timed(partial(lw.tune, fitted, way, progress=True))
        probs, predicting = timed(partial(probabilities, found, task.test[0]))
        row: Row = {"tuned": name, "value": float(found.prior_precisions[0])}
        row |= {"fit_seconds": fitting, "tune_seconds": tuning, "predict_seconds": predicting}
        yield row | scored(probs, plain, task)


def scored(probs: Tensor, plain: Tensor, task: Task) -> Row:
    """Scores, and the difference of the NLL from the plain network's on the same images."""
    ours, theirs = (F.nll_loss(each.double().log(), task.test[1], reduction="none") for each in (probs, plain))
    change, row = ours - theirs, marginal(probs, task)
    if probs is plain:
        return row
    return row | averaged({"difference": change.tolist()})


def draw(found: Sequence[Row]) -> str:
    """The Markdown page: what was done, by which command, and a table a network."""
    text = f"""# CIFAR-10: two trained ResNet-20

Made by `{command(sys.argv)}`; do not edit by hand.

Two networks trained elsewhere, taken as they are. The curvature is that of {found[0]["images"]} training images (the
networks saw 50 000); all parameters, batch norm included, are uncertain, except in the rows of the last layer
(full covariance). The first 300 test images choose the temperature and, in the rows tuned by
validation, the prior precision; every row is scored on the other 717. Default is what lw.tune does by itself:
mixtures of training images; evidence at the weights is Laplace's, at the trained weights. Predictions are
linearised, by the link of each posterior. NLL in nats, ECE with 15 bins, ± one standard error
of the difference on the same images. Seconds are for fitting, tuning and predicting the 717 images.
"""
    for name, own in grouped(found, "network").items():
        text += f"\n## {NETWORKS[name]}\n\n{markdown(own, ('method', 'tuned'), COLUMNS)}\n"
    return text


STUDY = Study(rows, draw=draw, needs="CIFAR-10 and the trained networks")

if __name__ == "__main__":
    main({"cifar_table": STUDY})
