"""Trained networks with their data, predictors of them a hundred images at a time, and what these are worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.data import CHECKPOINTS, Pair, cifar10, generated_images, generator
from benchmarks.networks import ResNet, seeded
from benchmarks.report import Row
from lapwing import metrics
from lapwing.evaluation.baselines import Map
from lapwing.evaluation.scores import Predictor
from lapwing.posteriors import MatrixFreePosterior, Posterior
from lapwing.predictive import Classification, Moments

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
        pixels: Of images that are corrupted, the inputs of ``test`` in [0, 1].
        transform: From these pixels to what the network takes.
    """

    name: str
    model: nn.Module
    train: Pair
    held_out: Pair
    test: Pair
    examples: int
    event_dim: int = 0
    class_dim: int = -1
    pixels: Tensor = field(default_factory=lambda: torch.empty(0))
    transform: Callable[[Tensor], Tensor] = field(default_factory=nn.Identity)

    @classmethod
    def read(cls, name: str, setting: Setting, images: int = IMAGES) -> Task:
        """A network of the data folder; in a hurry or without one a small untrained one on generated images."""
        if setting.quick or setting.data is None:
            made = generated_images(3, 16, train=12, test=20)
            model = seeded(lambda: ResNet(1, projection=True, head="fc"), 0).eval()
            held_out, (raw, labels) = made.parted(8)
            pixels = raw.sigmoid()
            return cls("generated", model, made.train, held_out, (pixels, labels), EXAMPLES, pixels=pixels)
        checkpoint = CHECKPOINTS[name]
        data = cifar10(setting.data, checkpoint).head(setting.images or images)
        mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (checkpoint.mean, checkpoint.std))
        held_out, test = data.parted(VALIDATION)
        task = cls(name, checkpoint.load(setting.data), data.train, held_out, test, EXAMPLES)
        return replace(task, pixels=(test[0] * std + mean).clamp(0, 1), transform=lambda x: (x - mean) / std)

    @property
    def likelihood(self) -> lw.Categorical:
        """Each training example at hand stands for its share of all."""
        weight = self.examples / len(self.train[1])
        return lw.Categorical(event_dim=self.event_dim, class_dim=self.class_dim, weight=weight)

    @property
    def alone(self) -> dict[str, Callable[[], Map]]:
        """The network as it is, and with the temperature that suits the held-out images best."""
        network = Map(self.model)
        return {"plain": lambda: network, "temperature scaling": lambda: network.calibrated(self.held_out)}

    @cached_property
    def plain(self) -> float:
        """Test NLL of the network alone."""
        return metrics.nll(probabilities(Map(self.model), self.test[0]), self.test[1])


def matrix_free(model: nn.Module, pair: Pair, alpha: float, solver: lw.CG | None = None) -> MatrixFreePosterior:
    """The posterior by products alone."""
    recipe = lw.Laplace(lw.Categorical(), prior=lw.Isotropic(alpha), structure=lw.MatrixFree(solver or lw.CG()))
    posterior = recipe.fit(model, pair)
    assert isinstance(posterior, MatrixFreePosterior)
    return posterior


def probabilities(predictor: Any, x: Tensor, **options: Any) -> Tensor:
    """Probabilities of a hundred images at a time."""
    return torch.cat([predictor.predict(part, **options).probs for part in x.split(BATCH)])


def marginal(probs: Tensor, task: Task) -> Row:
    """Scores of the probabilities of each test image."""
    row = scored(probs, task.test[1], "nll", "ece", "accuracy", "brier")
    return {"test_images": len(probs)} | row | {"nll_over_plain": row["nll"] / task.plain}


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


def corruption_sweep(predictor: Any, task: Task, names: tuple[str, ...], images: int) -> Any:
    """Scores of so many of the test images, evenly spread, corrupted."""
    chosen = torch.linspace(0, len(task.pixels) - 1, min(images, len(task.pixels))).round().long()
    pair = task.pixels[chosen], task.test[1][chosen]
    options = {"names": names, "transform": task.transform, "generator": generator(2)}
    return lw.corruption_sweep(Batched(predictor), *pair, **options)


@dataclass(frozen=True, eq=False)
class Batched:
    """A predictor that is given a hundred images at a time, so that draws of their logits fit in memory."""

    inner: Predictor

    @property
    def likelihood(self) -> Any:
        """p(y | f)."""
        return self.inner.likelihood

    def predict(self, x: Tensor) -> Classification:
        """All predictions, as one."""
        probs = probabilities(self.inner, x)
        return Classification(Moments.certain(probs.clamp_min(1e-30).log()), probs)


@dataclass(frozen=True, eq=False)
class Drawn:
    """A posterior that predicts by Monte Carlo over the logits, with the same numbers every time.

    Args:
        posterior: The posterior.
        samples: Draws.
    """

    posterior: Posterior
    samples: int

    @property
    def likelihood(self) -> Any:
        """p(y | f)."""
        return self.posterior.likelihood

    def predict(self, x: Tensor) -> Any:
        """Probabilities averaged over draws of the logits."""
        return self.posterior.predict(x, "mc", samples=self.samples, generator=generator())


@dataclass(frozen=True, eq=False)
class Linearised:
    """Functions ``f(x) + J(x) (w_j - w̃)`` for draws w_j of the weights, the same for every input.

    Args:
        posterior: Whose.
        draws: Deviations ``w_j - w̃``, ``[s, d]``.
    """

    posterior: Posterior
    draws: Float[Tensor, "s d"]

    @classmethod
    def of(cls, posterior: Posterior, samples: int, generator: torch.Generator) -> Linearised:
        """With draws of a posterior."""
        return cls(posterior, posterior.sample(samples, generator=generator) - posterior.network.weights)

    def outputs(self, x: Tensor) -> Float[Tensor, "s n c"]:
        """Outputs of every function at some inputs."""
        own = self.posterior
        with torch.no_grad():
            mean, moved = own.pushed(x, self.draws.mT)
            return mean + moved.movedim(-1, 0)
