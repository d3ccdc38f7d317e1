"""The ResNets on CIFAR-10 that others trained, their images, and how much of the study is done with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from benchmarks.data import CHECKPOINTS, Split, cifar10, generated_images
from benchmarks.networks import ResNet
from lapwing.evaluation import metrics
from lapwing.evaluation.baselines import Map
from lapwing.evaluation.corruptions.corrupt import CORRUPTIONS
from studies.sampled.setting import Setting

RESNETS = ("ella_resnet20", "resnet20", "resnet32")
IMAGES, VALIDATION = 2000, 300


@dataclass(frozen=True)
class Amount:
    """How much is done.

    Args:
        tuning: Draws behind EM.
        draws: Draws behind predictions, and functions behind joint log-likelihoods.
        rank: Of the preconditioner.
        start: Precision of the g-prior that tuning starts from.
        rtol: Relative residual of the draws that EM and predictions are made of.
        steps: Most steps of EM.
        factors: Scales of the prior tried on the validation images, relative to EM's, largest first.
        corruptions: Which.
        corrupted: Test images that are corrupted, evenly spread.
        shuffles: Of the joint log-likelihoods.
    """

    tuning: int = 4
    draws: int = 64
    rank: int = 600
    start: float = 1000.0
    rtol: float = 1e-2
    steps: int = 15
    factors: tuple[float, ...] = (4.0, 2.0, 1.0, 0.5, 0.25)
    corruptions: tuple[str, ...] = CORRUPTIONS
    corrupted: int = 100
    shuffles: int = 10


QUICK = Amount(2, 4, 4, 1000.0, 0.05, 2, (2.0, 1.0, 0.5), ("contrast",), 6, 2)


@dataclass(frozen=True)
class Task:
    """A trained network and its images.

    Args:
        name: Of the network.
        model: The network.
        data: Training and test images, as the network takes them.
        pixels: The test images that score, in [0, 1].
        transform: From pixels in [0, 1] to what the network takes.
        validation: How many test images choose.
    """

    name: str
    model: nn.Module
    data: Split
    pixels: Tensor
    transform: Callable[[Tensor], Tensor]
    validation: int

    @classmethod
    def read(cls, name: str, setting: Setting) -> Task:
        """A network of the data folder; in a hurry a small untrained one on generated images."""
        if setting.quick or setting.data is None:
            made = generated_images(3, 32, train=12, test=20)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                model = ResNet(1, projection=True, head="fc").eval()
            pixels = made.x_test[8:].sigmoid()
            data = replace(made, x_test=torch.cat([made.x_test[:8], pixels]))
            return cls("generated", model, data, pixels, nn.Identity(), 8)
        checkpoint = CHECKPOINTS[name]
        data = cifar10(setting.data, checkpoint).head(setting.train or IMAGES, 10_000)
        mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (checkpoint.mean, checkpoint.std))
        pixels = (data.x_test[VALIDATION:] * std + mean).clamp(0, 1)
        return cls(name, checkpoint.load(setting.data), data, pixels, lambda x: (x - mean) / std, VALIDATION)

    @property
    def train(self) -> tuple[Tensor, Tensor]:
        """What the curvature is summed over."""
        return self.data.x_train, self.data.y_train

    @property
    def held_out(self) -> tuple[Tensor, Tensor]:
        """What chooses."""
        return self.data.x_test[: self.validation], self.data.y_test[: self.validation]

    @property
    def test(self) -> tuple[Tensor, Tensor]:
        """What scores."""
        return self.data.x_test[self.validation :], self.data.y_test[self.validation :]

    @cached_property
    def plain(self) -> float:
        """Test NLL of the network alone."""
        return metrics.nll(Map(self.model).predict(self.test[0]).probs, self.test[1])
