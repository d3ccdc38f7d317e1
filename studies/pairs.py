"""Networks and data for studies of what users do: small networks of all ages on images and tables.

Images and tables come with a network that is trained here, from a seed. Events are made up: shapes to be found pixel by
pixel, and sequences of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.command import Setting
from benchmarks.data import Pair, digits, generator, mnist
from benchmarks.networks import perceptron, seeded
from benchmarks.tasks import Task
from benchmarks.training import train


def recipes(setting: Setting) -> Iterator[tuple[str, Callable[[int], Task]]]:
    """All cases: the name of each, and what makes it from a seed.

    Args:
        setting: Has the data folder, for MNIST.
    """
    for size, epochs in ((150, 200), (300, 50), (1200, 10)):
        for norm in (False, True):
            kind = "CNN with batch norm" if norm else "CNN"
            name = f"digits {size}, {kind}, {epochs} epochs"
            yield name, partial(_digits, name, size, epochs, partial(cnn, norm))
        name = f"digits {size}, MLP, {epochs} epochs"
        yield name, partial(_digits, name, size, epochs, partial(flat, 64))
    for size, epochs in ((300, 100), (1000, 30)):
        for kind, net in (("CNN", partial(cnn, False)), ("MLP", partial(flat, 784))):
            name = f"MNIST {size}, {kind}, {epochs} epochs"
            yield name, partial(_mnist, name, setting, size, epochs, net)
    for table, size in (("breast cancer", 250), ("wine", 80)):
        for epochs in (20, 100):
            name = f"{table} {size}, MLP, {epochs} epochs"
            yield name, partial(_table, name, table, size, epochs)
    for noise in (0.0, 0.3):
        for epochs in (10, 100):
            name = f"generated table, {noise:.0%} of labels at random, MLP, {epochs} epochs"
            yield name, partial(_generated, name, noise, epochs)
    yield "shapes, segmentation head", partial(_shapes, "shapes, segmentation head")
    yield "sequences, GRU", partial(_sequences, "sequences, GRU")


def cnn(norm: bool, classes: int = 10) -> nn.Module:
    """Two convolutions and a linear layer."""
    norms = [[nn.BatchNorm2d(width)] if norm else [] for width in (8, 16)]
    first = [nn.Conv2d(1, 8, 3, padding=1), *norms[0], nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(8, 16, 3, padding=1), *norms[1], nn.ReLU(), nn.AdaptiveAvgPool2d(2)]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(64, classes))


def flat(inputs: int, classes: int = 10, width: int = 32) -> nn.Module:
    """Two hidden layers."""
    return nn.Sequential(nn.Flatten(), *perceptron(inputs, width, width, classes, activation=nn.ReLU))


class Tagger(nn.Module):
    """A label for every token: embedding, GRU, linear layer."""

    def __init__(self, tokens: int, classes: int) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(tokens, 8), nn.GRU(8, 12, batch_first=True)
        self.out = nn.Linear(12, classes)

    def forward(self, ids: Tensor) -> Tensor:
        """Tokens in, logits of each out."""
        return self.out(self.rnn(self.embed(ids))[0])


def task_of(
    name: str, data: Pair, size: int, seed: int, epochs: int, build: Callable[[], nn.Module], **axes: int
) -> Task:
    """Shuffled data, ``size`` to train on by Adam without a prior, of the rest a third to validate on."""
    x, y = data
    third = (len(y) - size) // 3
    parts = torch.randperm(len(y), generator=generator(seed)).split([size, third, len(y) - size - third])
    pairs = [(x[part], y[part]) for part in parts]

    def loss(f: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(f.movedim(axes.get("class_dim", -1), 1), y)

    options: dict[str, Any] = {"rate": 3e-3, "batch": 32, "schedule": "constant", "seed": seed}
    model = train(seeded(build, seed), *pairs[0], epochs=epochs, loss=loss, **options)
    return Task(name, model, *pairs, size, **axes)


def _digits(name: str, size: int, epochs: int, build: Callable[[], nn.Module], seed: int) -> Task:
    return task_of(name, digits(None, 1797).train, size, seed, epochs, build)


def _mnist(name: str, setting: Setting, size: int, epochs: int, build: Callable[[], nn.Module], seed: int) -> Task:
    split = mnist(setting.folder)
    order = torch.randperm(len(split.y_train), generator=generator(seed))[: size + 1500]
    return task_of(name, (split.x_train[order], split.y_train[order]), size, seed, epochs, build)


def _table(name: str, table: str, size: int, epochs: int, seed: int) -> Task:
    from sklearn import datasets

    found: Any = datasets.load_wine() if table == "wine" else datasets.load_breast_cancer()
    x = torch.tensor(found.data, dtype=torch.float32)
    classes = len(found.target_names)
    x = (x - x.mean(0)) / x.std(0)
    build = partial(flat, x.shape[1], classes, 20)
    return task_of(name, (x, torch.tensor(found.target).long()), size, seed, epochs, build)


def _generated(name: str, noise: float, epochs: int, seed: int) -> Task:
    """Three classes, each on two of the corners of a cube of six dimensions; twelve columns, standardised, nearly."""
    source = generator(100 + seed)
    corners = torch.randint(0, 2, (6, 6), generator=source) * 2.4 - 1.2
    cluster = torch.randint(0, 6, (1500,), generator=source)
    x = torch.cat([corners[cluster], torch.zeros(1500, 6)], 1) + torch.randn(1500, 12, generator=source)
    y = cluster % 3
    flipped = torch.rand(1500, generator=source) < noise
    y = torch.where(flipped, torch.randint(0, 3, (1500,), generator=source), y)
    return task_of(name, (x, y), 300, seed, epochs, partial(flat, 12, 3))


def _shapes(name: str, seed: int) -> Task:
    """A disc and a square on noise; each pixel is background, disc or square."""
    source = generator(200 + seed)
    grid = torch.arange(32.0)
    place = torch.rand(90, 2, 2, generator=source) * 20 + 6
    size = torch.rand(90, 2, generator=source) * 3 + 3
    down = (grid[:, None] - place[:, :, 0, None, None]).abs()
    across = (grid[None, :] - place[:, :, 1, None, None]).abs()
    disc = (down[:, 0].square() + across[:, 0].square()).sqrt() < size[:, 0, None, None]
    square = torch.maximum(down[:, 1], across[:, 1]) < size[:, 1, None, None]
    y = torch.where(square, 2, torch.where(disc, 1, 0))
    x = 0.7 * (y > 0).float() + 0.4 * torch.randn(90, 32, 32, generator=source)

    def build() -> nn.Module:
        layers = [nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 8, 5, padding=2), nn.ReLU()]
        return nn.Sequential(*layers, nn.Conv2d(8, 3, 1))

    return task_of(name, (x[:, None], y), 60, seed, 30, build, event_dim=2, class_dim=1)


def _sequences(name: str, seed: int) -> Task:
    """Each token is to be labelled by itself and the one before, a label in twenty at random."""
    source = generator(300 + seed)
    ids = torch.randint(0, 20, (260, 12), generator=source)
    before = torch.cat([torch.zeros(260, 1, dtype=torch.long), ids[:, :-1]], 1)
    y = (ids + 2 * before) % 4
    random = torch.rand(260, 12, generator=source) < 0.05
    y = torch.where(random, torch.randint(0, 4, (260, 12), generator=source), y)
    return task_of(name, (ids, y), 160, seed, 60, partial(Tagger, 20, 4), event_dim=1)
