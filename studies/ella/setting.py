"""What the studies of ELLA are run on, how much of them is run, and how ELLA is fitted and scored."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.data import Pair, digits, generator, mnist
from benchmarks.networks import seeded
from benchmarks.report import Row
from benchmarks.tasks import RESNETS, Task, marginal, probabilities
from benchmarks.training import kept_network, train
from lapwing.comparison.bench import measured
from lapwing.evaluation.corruptions import CORRUPTIONS
from lapwing.posteriors import NystromPosterior, Posterior
from studies.sampled.setting import SGD

DECAY = 1e-4
"""Weight decay the ResNets were trained with."""

CNN_IMAGES, CNN_VALIDATION, CNN_TEST, EPOCHS = 2000, 256, 2000, 30


@dataclass(frozen=True)
class Amount:
    """How much is done.

    Args:
        rank: K, directions kept.
        landmarks: M, pairs of a training image and an output.
        samples: Draws of the logits behind a prediction.
        every: Training images between two looks at the held-out images.
        images: Training images behind the curvature of the methods that ELLA is compared with.
        everything: Training images where nothing stops ELLA.
        tested: Most test images.
        corruptions: Which.
        corrupted: Test images that are corrupted, evenly spread.
        ranks: K of the study of the rank.
        repeats: Of each timing.
        timed: Images a timing predicts.
    """

    rank: int = 20
    landmarks: int = 500
    samples: int = 512
    every: int = 100
    images: int = 2000
    everything: int = 10_000
    tested: int = 10_000
    corruptions: tuple[str, ...] = CORRUPTIONS
    corrupted: int = 240
    ranks: tuple[int, ...] = (1, 2, 5, 10, 15, 20, 30, 50)
    repeats: int = 7
    timed: int = 128


QUICK = Amount(3, 10, 16, 8, 10, 24, 16, ("contrast",), 6, (1, 3), 2, 4)


def amount_of(setting: Setting) -> Amount:
    """How much is done."""
    amount = QUICK if setting.quick else Amount()
    return amount if setting.images is None else replace(amount, images=setting.images)


def cases(setting: Setting, default: tuple[str, ...]) -> list[Task]:
    """The networks asked for, or else the study's own choice."""
    return [case_of(setting, name) for name in setting.among(("cnn", *RESNETS), default)]


def case_of(setting: Setting, name: str) -> Task:
    """A network, the CNN or one of the ResNets; without data an untrained one in the place of the latter."""
    amount = amount_of(setting)
    read = trained_cnn if name == "cnn" else partial(Task.read, name)
    task = read(replace(setting, images=amount.everything))
    train, test = first(task.train, amount.everything), first(task.test, amount.tested)
    return replace(task, train=train, test=test, pixels=task.pixels[: amount.tested])


def trained_cnn(setting: Setting) -> Task:
    """A CNN trained on MNIST; without data, or in a hurry, on the digits of scikit-learn."""
    small = setting.quick or setting.data is None
    data = digits() if small else mnist(setting.folder)
    order = torch.randperm(len(data.y_test), generator=generator())
    data = replace(data, x_test=data.x_test[order], y_test=data.y_test[order])
    data = data.head(200 if setting.quick else CNN_IMAGES, CNN_VALIDATION + CNN_TEST)
    validation = 8 if setting.quick else CNN_VALIDATION
    model = cnn(8 if small else 28, narrow=setting.quick)
    recipe = SGD | {"rate": 0.05, "epochs": 3 if setting.quick else EPOCHS}
    kept_network(lambda: train(model, *data.train, **recipe), model, setting.kept, "ella-cnn", recipe, *data.train)
    held_out, test = data.parted(validation)
    return Task("cnn", model, data.train, held_out, test, CNN_IMAGES, pixels=test[0])


def precision(case: Task) -> float:
    """The prior precision of the paper's rule: N γ for N training examples and a weight decay γ, ``1 / σ₀²``."""
    return case.examples * DECAY


def laplace(case: Task, structure: Any, **options: Any) -> lw.Laplace:
    """A recipe under the paper's prior."""
    return lw.Laplace(lw.Categorical(), prior=lw.Isotropic(precision(case)), structure=structure, **options)


def first(pair: Pair, images: int) -> Pair:
    """The first images and their labels."""
    return pair[0][:images], pair[1][:images]


def scores(predictor: Any, case: Task) -> Row:
    """Scores on the test images, a hundred at a time, the seconds that took and the memory."""
    found = measured(lambda: probabilities(predictor, case.test[0]))
    return marginal(found.value, case) | {"predict_seconds": found.seconds, "predict_mib": found.peak_mib}


def ella(
    case: Task, amount: Amount, seed: int, *, stopping: lw.NystromStopping | None = None, rank: int | None = None
) -> tuple[NystromPosterior, Row]:
    """ELLA as published, under the paper's prior, without the residual; and what fitting it cost.

    Args:
        case: Network and images.
        amount: How much is done.
        seed: Of the landmarks.
        stopping: When to stop.
        rank: Another rank.
    """
    structure = lw.Nystrom(
        rank or amount.rank, max(amount.landmarks, rank or 0), residual=False, stopping=stopping, seed=seed
    )
    found = measured(lambda: laplace(case, structure).fit(case.model, case.train))
    posterior = found.value
    assert isinstance(posterior, NystromPosterior)
    row: Row = {"rank": structure.rank, "landmarks": structure.samples}
    row |= {"fit_seconds": found.seconds, "fit_mib": found.peak_mib}
    row |= {"stopped_at": float(posterior.totals.examples), "kernel_error": posterior.report.error.value}
    return posterior, row | {"trace": [list(point) for point in posterior.report.trace]}


def watched(data: Pair, amount: Amount, *, patience: int = 3) -> lw.NystromStopping:
    """Early stopping by held-out images."""
    return lw.NystromStopping(data, every=amount.every, patience=patience, link="mc", samples=amount.samples)


def at_precision(posterior: Posterior, precision: float) -> Posterior:
    """The same posterior under another prior precision."""
    prior = posterior.prior.with_precisions(torch.tensor([precision], dtype=torch.float64))
    return posterior.with_choices(prior, posterior.likelihood)


def cnn(pixels: int = 28, *, narrow: bool = False, seed: int = 0) -> nn.Sequential:
    """Two convolutions of 5 × 5 with batch norm, ReLU and pooling, and a linear head.

    Args:
        pixels: Height and width of an image.
        narrow: Whether to take a quarter of the 16 and 32 channels.
        seed: Of the initial weights.

    Example:
        >>> sum(p.numel() for p in cnn().parameters()), cnn()(torch.zeros(2, 1, 28, 28)).shape
        (29034, torch.Size([2, 10]))
    """
    first, second = (4, 8) if narrow else (16, 32)

    def layers() -> nn.Sequential:
        stages: list[nn.Module] = []
        for i, o in ((1, first), (first, second)):
            stages += [nn.Conv2d(i, o, 5, padding=2), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(*stages, nn.Flatten(), nn.Linear(second * (pixels // 4) ** 2, 10)).eval()

    return seeded(layers, seed)
