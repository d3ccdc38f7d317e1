"""What the studies of ELLA are run on, and how much of them is run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import lapwing as lw
from benchmarks.data import mnist
from benchmarks.training import digits
from lapwing.evaluation.corruptions import CORRUPTIONS
from studies.kept import kept_network
from studies.sampled import resnets
from studies.sampled.setting import Setting as Options
from studies.sampled.trained import Training
from studies.seeds import generator

EXAMPLES, DECAY = 50_000, 1e-4
"""Images and weight decay the ResNets were trained with."""

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


@dataclass(frozen=True)
class Setting:
    """The options of the command line.

    Args:
        data: The data folder; ``None`` does with what is generated or comes with scikit-learn.
        quick: Whether seconds must do: few examples, few landmarks, few cases. Its numbers say nothing.
        seeds: How often a study is repeated.
        networks: Which networks, by name; empty for the study's own choice.
        only: Which methods, by name; empty for all.
        images: Training images of the methods ELLA is compared with; ``None`` for the study's own choice.
        kept: Folder where the trained CNN is kept; ``None`` trains anew.
    """

    data: Path | None = None
    quick: bool = False
    seeds: int = 5
    networks: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    images: int | None = None
    kept: Path | None = None

    @property
    def repeats(self) -> range:
        """The seeds."""
        return range(min(2, self.seeds) if self.quick else self.seeds)

    @property
    def amount(self) -> Amount:
        """How much is done."""
        amount = QUICK if self.quick else Amount()
        return amount if self.images is None else replace(amount, images=self.images)

    def wants(self, name: str) -> bool:
        """Whether a method was asked for."""
        return not self.only or name in self.only

    def cases(self, default: tuple[str, ...]) -> list[Case]:
        """The networks asked for, or else the study's own choice."""
        return [self.case(name) for name in self.networks or default]

    def case(self, name: str) -> Case:
        """A network, the CNN or one of the ResNets; without data an untrained one in the place of the latter."""
        task, precision = (self._cnn, CNN_IMAGES * DECAY) if name == "cnn" else (self._resnet(name), EXAMPLES * DECAY)
        data = task.data.head(self.amount.everything, task.validation + self.amount.tested)
        return Case(replace(task, data=data, pixels=task.pixels[: self.amount.tested]), precision)

    def _resnet(self, name: str) -> resnets.Task:
        return resnets.Task.read(name, Options(self.data, quick=self.data is None, train=self.amount.everything))

    @cached_property
    def _cnn(self) -> resnets.Task:
        """A CNN trained on MNIST; without data, or in a hurry, on the digits of scikit-learn."""
        small = self.quick or self.data is None
        data = digits() if self.data is None or self.quick else mnist(self.data)
        order = torch.randperm(len(data.y_test), generator=generator())
        data = replace(data, x_test=data.x_test[order], y_test=data.y_test[order])
        data = data.head(200 if self.quick else CNN_IMAGES, CNN_VALIDATION + CNN_TEST)
        validation = 8 if self.quick else CNN_VALIDATION
        model = cnn(8 if small else 28, narrow=self.quick)
        training, epochs = Training(rate=0.05), 3 if self.quick else EPOCHS
        key = (training, epochs, data.x_train, data.y_train)
        kept_network(lambda: training.run(model, data, epochs, seed=0), model, self.kept, "ella-cnn", *key)
        return resnets.Task("cnn", model, data, data.x_test[validation:], nn.Identity(), validation)


@dataclass(frozen=True)
class Case:
    """A trained network, its images, and the prior precision the paper's rule gives it.

    Args:
        task: Network and images.
        precision: N γ for N training examples and a weight decay γ: ``1 / σ₀²``.
    """

    task: resnets.Task
    precision: float

    def laplace(self, structure: Any, **options: Any) -> lw.Laplace:
        """A recipe under the paper's prior."""
        return lw.Laplace(lw.Categorical(), prior=lw.Isotropic(self.precision), structure=structure, **options)

    def train(self, images: int | None = None) -> tuple[Tensor, Tensor]:
        """The first training images."""
        return self.task.data.x_train[:images], self.task.data.y_train[:images]


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
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        stages = [stage for i, o in ((1, first), (first, second)) for stage in _stage(i, o)]
        return nn.Sequential(*stages, nn.Flatten(), nn.Linear(second * (pixels // 4) ** 2, 10)).eval()


def _stage(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 5, padding=2), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)
