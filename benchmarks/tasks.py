"""Trained networks with their data, predictors of them a hundred images at a time, and what these are worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.data import CHECKPOINTS, Pair, cifar10, generated_images
from benchmarks.networks import ResNet, seeded
from benchmarks.report import Row
from lapwing import metrics
from lapwing.posteriors import MatrixFreePosterior, Posterior
from lapwing.predictive import Moments

RESNETS = ("ella_resnet20", "resnet20", "resnet32")
IMAGES, VALIDATION, BATCH = 2000, 300, 100
EXAMPLES = 50_000
"""Images the ResNets were trained with, of which a part is at hand."""


@dataclass(frozen=True)
class Task:
    """A trained network and its data.

    Args:
        name: Of network and data.
        model: The network, in evaluation mode.
        train: What the curvature is summed over: what it was trained on, or a part of that.
        held_out: To choose on, where that is allowed.
        test: To score on.
        examples: How many training examples there were.
        event_dim: Axes of positions.
        class_dim: Axis of the classes.
    """

    name: str
    model: nn.Module
    train: Pair
    held_out: Pair
    test: Pair
    examples: int
    event_dim: int = 0
    class_dim: int = -1

    @classmethod
    def read(cls, name: str, setting: Setting, images: int = IMAGES) -> Task:
        """A network of the data folder; in a hurry or without one a small untrained one on generated images."""
        if setting.quick or setting.data is None:
            made = generated_images(3, 16, train=12, test=20)
            model = seeded(lambda: ResNet(1, projection=True, head="fc"), 0).eval()
            held_out, (raw, labels) = made.parted(8)
            return cls("generated", model, made.train, held_out, (raw.sigmoid(), labels), EXAMPLES)
        checkpoint = CHECKPOINTS[name]
        data = cifar10(setting.data, checkpoint).head(setting.images or images)
        held_out, test = data.parted(VALIDATION)
        return cls(name, checkpoint.load(setting.data), data.train, held_out, test, EXAMPLES)

    @property
    def likelihood(self) -> lw.Categorical:
        """Each training example at hand stands for its share of all."""
        weight = self.examples / len(self.train[1])
        return lw.Categorical(event_dim=self.event_dim, class_dim=self.class_dim, weight=weight)


def matrix_free(model: nn.Module, pair: Pair, alpha: float, solver: lw.solvers.CG | None = None) -> MatrixFreePosterior:
    """The posterior by products alone."""
    recipe = lw.Laplace(lw.Categorical(), prior=lw.Isotropic(alpha), structure=lw.MatrixFree(solver or lw.solvers.CG()))
    posterior = recipe.fit(model, pair)
    assert isinstance(posterior, MatrixFreePosterior)
    return posterior


def probabilities(predictor: Any, x: Tensor, **options: Any) -> Tensor:
    """Probabilities of a hundred images at a time."""
    return torch.cat([predictor.predict(part, **options).probs for part in x.split(BATCH)])


def scored(probs: Tensor, labels: Tensor, *names: str) -> Row:
    """Metrics of probabilities, by name."""
    return {name: float(getattr(metrics, name)(probs, labels)) for name in names}


def moments(posterior: Posterior, x: Tensor, choices: Sequence[Posterior]) -> list[Moments]:
    """Of the outputs at some inputs under every choice of the posterior, from one pass over them."""
    parts = [posterior.outputs_each(part, choices) for part in x.split(BATCH)]
    return [
        Moments(torch.cat([one.mean for one in same]), torch.cat([one.covariance for one in same]))
        for same in zip(*parts, strict=True)
    ]
