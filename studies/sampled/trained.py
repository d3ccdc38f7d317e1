"""The networks of table 5.1 by name and size, how each is trained, and where trained ones are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import nn

from benchmarks.data import Split
from studies.kept import kept_network
from studies.sampled.clouds import Transformer, cloud
from studies.sampled.convolutional import CNN, FixUp, ResNet

Size = Literal["small", "medium", "big"]
Filters = tuple[int, int, int]
SIZES: tuple[Size, ...] = get_args(Size)
"""About 15, 29 and 46 thousand weights."""


@dataclass(frozen=True)
class Training:
    """How a network is trained on the mean cross-entropy.

    Args:
        optimiser: ``"sgd"`` with momentum 0.9 and weight decay 1e-4, the rate cut to a tenth after 40 and 70 of 90
            parts; or ``"adam"``, the rate cut so too, or by 1 % an epoch.
        rate: First learning rate.
        decay: Whether the rate falls by 1 % an epoch.
        batch: Examples of a mini-batch.
    """

    optimiser: Literal["sgd", "adam"] = "sgd"
    rate: float = 0.1
    decay: bool = False
    batch: int = 100

    def run(self, model: nn.Module, data: Split, epochs: int, seed: int) -> nn.Module:
        """Train in place; the network comes back in evaluation mode."""
        generator = torch.Generator().manual_seed(seed)
        optimiser: torch.optim.Optimizer
        if self.optimiser == "sgd":
            optimiser = torch.optim.SGD(model.parameters(), self.rate, momentum=0.9, weight_decay=1e-4)
        else:
            optimiser = torch.optim.Adam(model.parameters(), self.rate)
        model.train()
        for epoch in range(epochs):
            for group in optimiser.param_groups:
                group["lr"] = self.rate * self._factor(epoch, epochs)
            order = torch.randperm(len(data.y_train), generator=generator).to(data.y_train.device)
            for index in order.split(self.batch):
                if len(index) < 2:
                    continue
                optimiser.zero_grad()
                nn.functional.cross_entropy(model(data.x_train[index]), data.y_train[index]).backward()
                optimiser.step()
        return model.eval()

    def _factor(self, epoch: int, epochs: int) -> float:
        if self.decay:
            return 0.99**epoch
        return 0.1 ** sum(90 * epoch >= part * epochs for part in (40, 70))


@dataclass(frozen=True)
class Family:
    """One column of the table.

    Args:
        make: The network of given widths.
        widths: Widths at each of ``SIZES``.
        training: How it is trained.
        points: Whether it reads clouds of points instead of images.
    """

    make: Callable[..., nn.Module]
    widths: tuple[tuple[int, ...], ...]
    training: Training = Training()
    points: bool = False


_RESIDUAL: tuple[Filters, ...] = ((12, 24, 32), (16, 32, 64), (22, 42, 64))

FAMILIES: dict[str, Family] = {
    "CNN": Family(lambda *f: CNN(f), ((16, 32, 32), (32, 32, 64), (42, 48, 60))),
    "ResNet": Family(lambda *f: ResNet(f), _RESIDUAL),
    "Pre-ResNet": Family(lambda *f: ResNet(f, first=True), _RESIDUAL),
    "FixUp": Family(lambda *f: FixUp(f), _RESIDUAL, Training("adam", 0.01)),
    "Transformer": Family(Transformer, ((60, 30), (80, 40), (120, 50)), Training("adam", 3e-3, decay=True), True),
}


def network(family: str, size: Size, seed: int = 0) -> nn.Module:
    """An untrained network; its initial weights follow the seed and leave the global one alone.

    Example:
        >>> sum(p.numel() for p in network("CNN", "medium").parameters())
        29226
    """
    chosen = FAMILIES[family]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return chosen.make(*chosen.widths[SIZES.index(size)])


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
    file, key = f"{name}-{family}-{size}-{seed}", (recipe, epochs, data.x_train, data.y_train)
    kept_network(lambda: recipe.run(model, data, epochs, seed), model, kept, file, *key)
    return model
