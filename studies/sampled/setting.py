"""What the studies are run on: the networks of table 5.1 by name and size, trained on digits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn

from benchmarks.command import Setting
from benchmarks.data import Split, digits, mnist
from benchmarks.networks import seeded
from benchmarks.tasks import Task
from benchmarks.training import kept_network, train
from studies.sampled.networks import Filters, Transformer, cloud, cnn, fixup, resnet

Size = Literal["small", "medium", "big"]
SIZES: tuple[Size, ...] = get_args(Size)
"""About 15, 29 and 46 thousand weights."""

SGD: dict[str, Any] = {"optimiser": "sgd", "rate": 0.1, "decay": 1e-4, "schedule": "cuts"}
"""How networks are trained unless they ask for more, see ``train``."""


@dataclass(frozen=True)
class Family:
    """One column of the table.

    Args:
        make: The network of given widths.
        widths: Widths at each of ``SIZES``.
        training: Options of ``train``.
        points: Whether it reads clouds of points instead of images.
    """

    make: Callable[..., nn.Module]
    widths: tuple[tuple[int, ...], ...]
    training: Mapping[str, Any] = field(default_factory=lambda: SGD)
    points: bool = False


_RESIDUAL: tuple[Filters, ...] = ((12, 24, 32), (16, 32, 64), (22, 42, 64))

FAMILIES: dict[str, Family] = {
    "CNN": Family(cnn, ((16, 32, 32), (32, 32, 64), (42, 48, 60))),
    "ResNet": Family(resnet, _RESIDUAL),
    "Pre-ResNet": Family(lambda *f: resnet(*f, first=True), _RESIDUAL),
    "FixUp": Family(fixup, _RESIDUAL, {"rate": 0.01, "schedule": "cuts"}),
    "Transformer": Family(Transformer, ((60, 30), (80, 40), (120, 50)), {"rate": 3e-3, "schedule": "decay"}, True),
}


def network(family: str, size: Size, seed: int = 0) -> nn.Module:
    """An untrained network; its initial weights follow the seed and leave the global one alone.

    Example:
        >>> sum(p.numel() for p in network("CNN", "medium").parameters())
        29226
    """
    chosen = FAMILIES[family]
    return seeded(lambda: chosen.make(*chosen.widths[SIZES.index(size)]), seed)


def inputs(family: str, data: Split) -> Split:
    """The data as a family reads them: images, or clouds of points."""
    if not FAMILIES[family].points:
        return data
    longest = int((cloud(torch.cat([data.x_train, data.x_test]))[..., 2] > 0).sum(1).max())
    return Split(cloud(data.x_train, longest), data.y_train, cloud(data.x_test, longest), data.y_test)


def trained(
    family: str, size: Size, data: Split, *, name: str, epochs: int, seed: int, kept: Path | None = None
) -> nn.Module:
    """A trained network, read from where it is kept if it was trained before on the same data in the same way.

    Args:
        family: One of ``FAMILIES``.
        size: One of ``SIZES``.
        data: As ``inputs`` gives them.
        name: Of the data.
        epochs: Passes over them.
        seed: Of the initial weights and the order of the batches.
        kept: Folder of trained networks; ``None`` trains anew.
    """
    model, recipe = network(family, size, seed).to(data.x_train.device), FAMILIES[family].training
    file, key = f"{name}-{family}-{size}-{seed}", (recipe, epochs, *data.train)
    kept_network(lambda: train(model, *data.train, epochs=epochs, seed=seed, **recipe), model, kept, file, *key)
    return model


def names(setting: Setting) -> tuple[str, ...]:
    """Of the data: images of digits, 8 × 8 from scikit-learn or 28 × 28 from MNIST."""
    return setting.among(("digits",) if setting.data is None else ("digits", "mnist"))


def task_of(setting: Setting, name: str, family: str, size: Size, seed: int, images: int, tested: int = 10_000) -> Task:
    """A network trained on all training images, the first of them behind its curvature, and test images."""
    whole = mnist(setting.folder) if name == "mnist" else digits()
    data = inputs(family, whole.head(120, 60) if setting.quick else whole)
    epochs = 3 if setting.quick else setting.epochs or {"digits": 90, "mnist": 15}[name]
    model = trained(family, size, data, name=name, epochs=epochs, seed=seed, kept=setting.kept)
    head = data.head(12 if setting.quick else setting.images or images, tested)
    return Task(name, model, head.train, *head.parted(0), len(data.y_train))
