"""Networks with their data: ResNets that others trained, and small networks trained here on digits and tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.data import Split, mnist
from benchmarks.training import digit_cnn, digits, train
from studies.sampled.resnets import RESNETS, Task
from studies.sampled.setting import Setting as Resnets
from studies.seeds import generator

Pair = tuple[Tensor, Tensor]
CIFAR = 50_000
NOISE = 0.2


@dataclass(frozen=True)
class Setting:
    """The options of the command line.

    Args:
        data: The data folder; ``None`` leaves out what needs it.
        quick: Whether seconds must do: few examples, one epoch, two pairs. Its numbers say nothing.
        seeds: How often networks are trained here.
        only: Names of the cases to run; empty for all.
    """

    data: Path | None = None
    quick: bool = False
    seeds: int = 5
    only: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Case:
    """A trained network and its data.

    Args:
        model: The network.
        train: What the curvature is summed over.
        held_out: What chooses precision, link and temperature.
        test: What scores.
        population: Training examples that the curvature stands for; ``None`` for those it has.
    """

    model: nn.Module
    train: Pair
    held_out: Pair
    test: Pair
    population: int | None = None


@dataclass(frozen=True)
class Own:
    """A small network trained here.

    Args:
        source: Name of the data.
        images: Training examples.
        held_out: Examples that choose.
        tested: Most examples that score.
        epochs: Passes over the training examples.
        noise: Share of labels, of all parts, that are drawn at random.
        flat: Whether the network is a perceptron.
    """

    source: str
    images: int
    held_out: int
    tested: int
    epochs: int
    noise: float = 0.0
    flat: bool = True

    def case(self, setting: Setting, seed: int) -> Case:
        """The data shuffled and the network trained with this seed."""
        x, y = pool(self.source, setting.data)
        source = generator(seed)
        order = torch.randperm(len(y), generator=source)[: self.images + self.held_out + self.tested]
        x, y, classes = x[order], y[order], int(y.max()) + 1
        spoilt = torch.rand(len(y), generator=source) < self.noise
        y = torch.where(spoilt, torch.randint(classes, y.shape, generator=source), y)
        sizes = (20, 20, 40) if setting.quick else (self.images, self.held_out, len(y) - self.images - self.held_out)
        (a, b, c), (d, e, f) = x[: sum(sizes)].split(sizes), y[: sum(sizes)].split(sizes)
        model = perceptron(x[0].numel(), classes, seed) if self.flat else cnn(x.shape[-1], seed)
        return Case(train(model, a, d, epochs=1 if setting.quick else self.epochs, seed=seed), (a, d), (b, e), (c, f))


OWN = {
    "digits 150": Own("digits", 150, 200, 1000, 60, flat=False),
    "digits 300": Own("digits", 300, 200, 1000, 60),
    "digits 1200": Own("digits", 1200, 200, 1000, 40, flat=False),
    "digits, labels spoilt": Own("digits", 600, 200, 900, 40, noise=NOISE),
    "breast cancer": Own("cancer", 250, 120, 1000, 100),
    "wine": Own("wine", 60, 50, 1000, 100),
    "clusters": Own("clusters", 300, 200, 1500, 60),
    "clusters, labels spoilt": Own("clusters", 600, 200, 1500, 40, noise=NOISE),
    "MNIST 300": Own("mnist", 300, 300, 2000, 40),
    "MNIST 1000": Own("mnist", 1000, 300, 2000, 15, flat=False),
}


def cases(setting: Setting) -> dict[str, tuple[range, Callable[[int], Case]]]:
    """Every network with its data by name: the seeds it is repeated with, and what reads or trains it."""
    found: dict[str, tuple[range, Callable[[int], Case]]] = {}
    for name in RESNETS if setting.data is not None or setting.quick else ():
        found[name] = (range(1), lambda _, name=name: resnet(name, setting))
    for name, own in OWN.items():
        if own.source != "mnist" or setting.data is not None:
            found[name] = (range(2 if setting.quick else setting.seeds), lambda seed, own=own: own.case(setting, seed))
    wanted = setting.only or (("ella_resnet20", "wine") if setting.quick else tuple(found))
    return {name: case for name, case in found.items() if name in wanted}


def resnet(name: str, setting: Setting) -> Case:
    """A network of the data folder; the first test images choose, the others score."""
    task = Task.read(name, Resnets(setting.data, setting.quick))
    return Case(task.model, task.train, task.held_out, task.test, CIFAR)


@cache
def pool(source: str, data: Path | None) -> Pair:
    """All examples of some data; columns of tables have mean 0 and variance 1."""
    if source == "clusters":
        return clusters(generator(0))
    if source in ("digits", "mnist"):
        split: Split = digits() if source == "digits" or data is None else mnist(data).head(3000, 3000)
        return torch.cat([split.x_train, split.x_test]), torch.cat([split.y_train, split.y_test])
    from sklearn import datasets

    table = {"cancer": datasets.load_breast_cancer, "wine": datasets.load_wine}[source]
    columns, labels = table(return_X_y=True)
    x = torch.tensor(columns, dtype=torch.float32)
    return (x - x.mean(0)) / x.std(0), torch.tensor(labels, dtype=torch.long)


def clusters(source: torch.Generator, examples: int = 3000, classes: int = 4, columns: int = 10) -> Pair:
    """Two clouds of each class, which overlap."""
    centres = torch.randn(classes, 2, columns, generator=source)
    y = torch.randint(classes, (examples,), generator=source)
    which = torch.randint(2, (examples,), generator=source)
    return centres[y, which] + torch.randn(examples, columns, generator=source), y


def perceptron(inputs: int, classes: int, seed: int, width: int = 32) -> nn.Sequential:
    """Two hidden layers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        hidden = (nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(width, classes))


def cnn(pixels: int, seed: int) -> nn.Sequential:
    """Two convolutions and a narrow hidden layer."""
    return digit_cnn(8, kernel=3, hidden=32, seed=seed) if pixels == 8 else digit_cnn(28, hidden=32, seed=seed)
