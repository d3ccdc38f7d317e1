"""Networks on which no rule of the library was chosen: other architectures, data, sizes and ages than in ``pairs``.

They were written down before the rule that they test was fixed, and trained for the first time after that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from benchmarks.command import Setting
from benchmarks.data import CHECKPOINTS, Pair, cifar10, digits, generator, mnist, standardised
from benchmarks.networks import EncoderLayer, perceptron
from benchmarks.tasks import Task
from studies.pairs import task_of


def recipes(setting: Setting) -> Iterator[tuple[str, Callable[[int], Task]]]:
    """All cases: the name of each, and what makes it from a seed.

    Args:
        setting: Has the data folder.
    """
    yield from _of_images(setting)
    yield from _of_tables(setting)
    yield "topics, transformer, 30 epochs", partial(_topics, "topics, transformer, 30 epochs", 30)
    yield "rings, segmentation head", partial(_rings, "rings, segmentation head")


def _of_images(setting: Setting) -> Iterator[tuple[str, Callable[[int], Task]]]:
    name = "digits 600, deep tanh MLP, 60 epochs"
    yield name, partial(_digits, name, 600, 60, lambda: _flat(64, 48, 48, 48, 10, activation=nn.Tanh))
    name = "digits 250, GELU CNN with group norm, 80 epochs"
    yield name, partial(_digits, name, 250, 80, grouped)
    name = "digits 400, logistic regression, 300 epochs"
    yield name, partial(_digits, name, 400, 300, lambda: _flat(64, 10))
    name = "MNIST 500, wide MLP, 40 epochs"
    yield name, partial(_mnist, name, setting, 500, 40, lambda: _flat(784, 100, 10))
    name = "MNIST 2000, residual CNN with batch norm, 6 epochs"
    yield name, partial(_mnist, name, setting, 2000, 6, lambda: residual(1, 10, 49))
    name = "CIFAR-10 1000, residual CNN with batch norm, 20 epochs"
    yield name, partial(_cifar, name, setting, 1000, 20, lambda: residual(3, 10, 64))
    name = "CIFAR-10 halved 1500, residual CNN with batch norm, 6 epochs"
    yield name, partial(_halved, name, setting, 1500, 6, lambda: residual(3, 10, 16))


def _of_tables(setting: Setting) -> Iterator[tuple[str, Callable[[int], Task]]]:
    name = "iris 75, MLP, 300 epochs"
    yield name, partial(_iris, name, 75, 300)
    name = "breast cancer 150, MLP with batch norm, 60 epochs"
    yield name, partial(_cancer, name, 150, 60)
    for epochs in (10, 60):
        name = f"wine quality 500, MLP, {epochs} epochs"
        yield name, partial(_quality, name, setting, 500, epochs)
    name = "moons 120, MLP, 200 epochs"
    yield name, partial(_moons, name, 120, 200)
    name = "generated table of five classes, 10% of labels at random, MLP, 40 epochs"
    yield name, partial(_clusters, name, 500, 40)


def _flat(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *perceptron(*widths, activation=activation, seed=int(torch.randint(999, ()))))


def grouped() -> nn.Module:
    """Two convolutions with group norm and a hidden layer, of images of eight by eight."""
    first = [nn.Conv2d(1, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.GELU(), nn.AvgPool2d(2)]
    second = [nn.Conv2d(12, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.GELU()]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(256, 32), nn.GELU(), nn.Linear(32, 10))


class Residual(nn.Module):
    """``x + conv(relu(norm(conv(x))))``."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        first = nn.Conv2d(channels, channels, 3, padding=1)
        second = nn.Conv2d(channels, channels, 3, padding=1)
        self.branch = nn.Sequential(first, nn.BatchNorm2d(channels), nn.ReLU(), second)

    def forward(self, x: Tensor) -> Tensor:
        """Images in, images out."""
        return x + self.branch(x)


def residual(channels: int, classes: int, places: int) -> nn.Module:
    """A residual block at a quarter of the resolution, behind a convolution that halves it, and a linear layer.

    Args:
        channels: Of the images.
        classes: Width of the output.
        places: Positions that are left of an image.
    """
    stem = [nn.Conv2d(channels, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*stem, Residual(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * places, classes))


class Topics(nn.Module):
    """A label for a sequence: embeddings of tokens and places, one layer of an encoder, the mean, a linear layer."""

    def __init__(self, tokens: int, length: int, classes: int, width: int = 16) -> None:
        super().__init__()
        self.token = nn.Embedding(tokens, width)
        self.place = nn.Parameter(0.1 * torch.randn(length, width))
        self.encoder = EncoderLayer(width, heads=2)
        self.head = nn.Linear(width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        """Tokens in, logits of each sequence out."""
        return self.head(self.encoder(self.token(ids) + self.place).mean(1))


def _digits(name: str, size: int, epochs: int, build: Callable[[], nn.Module], seed: int) -> Task:
    return task_of(name, digits(None, 1797).train, size, seed, epochs, build)


def _mnist(name: str, setting: Setting, size: int, epochs: int, build: Callable[[], nn.Module], seed: int) -> Task:
    split = mnist(setting.folder)
    return task_of(name, _some(split.test, size + 1500, seed), size, seed, epochs, build)


def _cifar(name: str, setting: Setting, size: int, epochs: int, build: Callable[[], nn.Module], seed: int) -> Task:
    split = cifar10(setting.folder, CHECKPOINTS["resnet20"])
    return task_of(name, _some(split.train, size + 1500, seed), size, seed, epochs, build)


def _halved(name: str, setting: Setting, size: int, epochs: int, build: Callable[[], nn.Module], seed: int) -> Task:
    """Photographs of half the height and width."""
    x, y = _some(cifar10(setting.folder, CHECKPOINTS["resnet20"]).train, size + 1500, seed)
    return task_of(name, (avg_pool2d(x, 2), y), size, seed, epochs, build)


def _some(data: Pair, count: int, seed: int) -> Pair:
    """So many examples, at random."""
    order = torch.randperm(len(data[1]), generator=generator(seed))[:count]
    return data[0][order], data[1][order]


def _iris(name: str, size: int, epochs: int, seed: int) -> Task:
    from sklearn.datasets import load_iris

    return _of_table(name, load_iris(), size, epochs, lambda: _flat(4, 16, 16, 3, activation=nn.Tanh), seed)


def _cancer(name: str, size: int, epochs: int, seed: int) -> Task:
    from sklearn.datasets import load_breast_cancer

    def build() -> nn.Module:
        first = [nn.Linear(30, 24), nn.BatchNorm1d(24), nn.ReLU()]
        return nn.Sequential(*first, nn.Linear(24, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 2))

    return _of_table(name, load_breast_cancer(), size, epochs, build, seed)


def _of_table(name: str, found: Any, size: int, epochs: int, build: Callable[[], nn.Module], seed: int) -> Task:
    """A table of scikit-learn, its columns standardised."""
    x = torch.tensor(found.data, dtype=torch.float32)
    return task_of(name, (standardised(x, x), torch.tensor(found.target).long()), size, seed, epochs, build)


def _quality(name: str, setting: Setting, size: int, epochs: int, seed: int) -> Task:
    """Wines that judges found poor, middling or good: labels on which no two would agree throughout."""
    with np.load(setting.folder / "uci" / "wine.npz") as file:
        x = torch.from_numpy(file["x"]).float()
        quality = torch.from_numpy(file["y"]).float()
    levels = quality.unique()
    y = torch.bucketize(quality, levels[[2, 3]])
    return task_of(name, (standardised(x, x), y), size, seed, epochs, lambda: _flat(11, 32, 32, 3))


def _moons(name: str, size: int, epochs: int, seed: int) -> Task:
    from sklearn.datasets import make_moons

    x, y = make_moons(1200, noise=0.3, random_state=seed)
    data = (torch.tensor(x, dtype=torch.float32), torch.tensor(y).long())
    return task_of(name, data, size, seed, epochs, lambda: _flat(2, 32, 32, 2))


def _clusters(name: str, size: int, epochs: int, seed: int) -> Task:
    from sklearn.datasets import make_classification

    shape: dict[str, Any] = {"n_samples": 2000, "n_features": 15, "n_informative": 8, "n_classes": 5}
    x, y = make_classification(**shape, n_clusters_per_class=2, class_sep=1.5, flip_y=0.1, random_state=seed)
    data = (torch.tensor(x, dtype=torch.float32), torch.tensor(y).long())
    return task_of(name, data, size, seed, epochs, lambda: _flat(15, 40, 5, activation=nn.Tanh))


def _topics(name: str, epochs: int, seed: int) -> Task:
    """Four classes of sequences, each with its own frequencies of 30 tokens."""
    source = generator(400 + seed)
    frequencies = torch.softmax(torch.randn(4, 30, generator=source), -1)
    y = torch.randint(0, 4, (900,), generator=source)
    ids = torch.multinomial(frequencies[y], 10, replacement=True, generator=source)
    return task_of(name, (ids, y), 250, seed, epochs, lambda: Topics(30, 10, 4))


def _rings(name: str, seed: int) -> Task:
    """Rings on noise; each pixel is ring or background."""
    source = generator(500 + seed)
    grid = torch.arange(24.0)
    place = torch.rand(70, 2, generator=source) * 10 + 7
    radius = torch.rand(70, generator=source) * 3 + 3
    down = grid[None, :, None] - place[:, 0, None, None]
    across = grid[None, None, :] - place[:, 1, None, None]
    distance = (down.square() + across.square()).sqrt()
    y = ((distance - radius[:, None, None]).abs() < 1.0).long()
    x = y.float() + 0.8 * torch.randn(70, 24, 24, generator=source)

    def build() -> nn.Module:
        layers = [nn.Conv2d(1, 8, 5, padding=2), nn.Tanh(), nn.Conv2d(8, 8, 5, padding=2), nn.Tanh()]
        return nn.Sequential(*layers, nn.Conv2d(8, 2, 1))

    return task_of(name, (x[:, None], y), 40, seed, 60, build, event_dim=2, class_dim=1)
