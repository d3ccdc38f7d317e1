"""Three networks with 1000 examples: a perceptron, LeNet, and a ResNet-20."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.data import CHECKPOINTS, Split, cifar10, generated_images, mnist
from benchmarks.networks import ResNet, lenet

EXAMPLES = 1000
"""Examples of every problem."""


@dataclass(frozen=True)
class Problem:
    """A network, its data, and how they are fed.

    Args:
        network: Builds the network.
        shape: Channels and size of an image.
        real: Reads data from the data folder.
        checkpoint: The trained network in the data folder, if it has one.
        batch: Examples to a batch, for lapwing and for plain gradients.
        peer: Batch sizes the peer is tried with, for one column and for a block; the fastest counts.
        eighth: Whether forms the rule does not pick, slow ones among them, are timed on an eighth of the examples.
    """

    network: Callable[[], nn.Module]
    shape: tuple[int, int]
    real: Callable[[Path], Split]
    checkpoint: str | None
    batch: int
    peer: dict[int, tuple[int, ...]]
    eighth: bool

    def load(self, folder: Path | None, device: str) -> tuple[nn.Module, Tensor, Tensor]:
        """The network in evaluation mode, and its data."""
        torch.manual_seed(0)
        if folder is None:
            data = generated_images(*self.shape, train=EXAMPLES, test=1)
        else:
            data = self.real(folder).head(EXAMPLES, 1)
        given = folder is not None and self.checkpoint is not None
        model = CHECKPOINTS[self.checkpoint].load(folder) if given else self.network()
        return model.to(device).eval(), data.x_train.to(device), data.y_train.to(device)


def perceptron() -> nn.Sequential:
    """784-37-37-10, as many parameters as LeNet: 30,831.

    Example:
        >>> sum(p.numel() for p in perceptron().parameters())
        30831
    """
    layers = (nn.Linear(784, 37), nn.ReLU(), nn.Linear(37, 37), nn.ReLU(), nn.Linear(37, 10))
    return nn.Sequential(nn.Flatten(), *layers)


PROBLEMS: dict[str, Problem] = {
    "mlp": Problem(perceptron, (1, 28), mnist, None, 1000, {1: (250, 1000), 32: (50, 250)}, False),
    "lenet": Problem(lenet, (1, 28), mnist, None, 250, {1: (125, 250), 32: (50, 250)}, False),
    "resnet20": Problem(
        lambda: ResNet(3),
        (3, 32),
        lambda folder: cifar10(folder, CHECKPOINTS["resnet20"]),
        "resnet20",
        125,
        {1: (50, 125), 32: (10, 25)},
        True,
    ),
}
