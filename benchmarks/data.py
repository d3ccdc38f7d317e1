"""Data and trained networks of benchmarks and studies: read from a folder, or generated from a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from safetensors.torch import load_file
from torch import Tensor, nn

from benchmarks.networks import ResNet

Pair = tuple[Tensor, Tensor]
"""Inputs and targets."""

Triple = tuple[float, float, float]


def generator(seed: int = 0) -> torch.Generator:
    """A seeded source of randomness."""
    return torch.Generator().manual_seed(seed)


def uniform(n: int, low: float, high: float, source: torch.Generator) -> Float[Tensor, "n 1"]:
    """Uniform draws from an interval, a float64 column."""
    return low + (high - low) * torch.rand([n, 1], generator=source, dtype=torch.float64)


def standardised(values: Tensor, train: Tensor) -> Tensor:
    """The values less the means of the training part, over its deviations; constant columns become 0."""
    spread = train.std(0)
    return (values - train.mean(0)) / torch.where(spread > 0, spread, 1.0)


@dataclass(frozen=True)
class Split:
    """Training and test sets.

    Args:
        x_train: Training inputs, ``[n, ...]``.
        y_train: Training labels, ``[n]``.
        x_test: Test inputs.
        y_test: Test labels.
    """

    x_train: Tensor
    y_train: Int[Tensor, " n"]
    x_test: Tensor
    y_test: Int[Tensor, " m"]

    @property
    def train(self) -> Pair:
        """To train on."""
        return self.x_train, self.y_train

    @property
    def test(self) -> Pair:
        """To score on."""
        return self.x_test, self.y_test

    def parted(self, held_out: int) -> tuple[Pair, Pair]:
        """The first test examples, to choose on, and the others."""
        (x, y), n = self.test, held_out
        return (x[:n], y[:n]), (x[n:], y[n:])

    def to(self, where: torch.device | torch.dtype | str) -> Split:
        """On another device, or the inputs of another type."""
        kept = isinstance(where, torch.dtype)
        return Split(*(v if kept and not v.is_floating_point() else v.to(where) for v in vars(self).values()))

    def head(self, train: int | None, test: int | None = None) -> Split:
        """The first ``train`` and ``test`` examples."""
        return Split(self.x_train[:train], self.y_train[:train], self.x_test[:test], self.y_test[:test])


@dataclass(frozen=True)
class Checkpoint:
    """A network trained elsewhere: its file, its architecture, how its inputs were normalised.

    Args:
        file: Path of the state dict below the data folder.
        network: Builds the network the state dict fits.
        mean: Mean of each channel, in units of pixels / 255.
        std: Standard deviation of each channel, in the same units.
    """

    file: str
    network: Callable[[], nn.Module]
    mean: Triple
    std: Triple

    def load(self, folder: Path) -> nn.Module:
        """The trained network, in evaluation mode."""
        model = self.network()
        model.load_state_dict(load_file(folder / self.file), strict=True)
        return model.eval()

    def normalise(self, pixels: UInt8[Tensor, "n 3 h w"]) -> Float[Tensor, "n 3 h w"]:
        """Pixels 0..255 as the network wants them."""
        mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (self.mean, self.std))
        return (pixels / 255 - mean) / std


_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_CIFAR = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))

CHECKPOINTS: dict[str, Checkpoint] = {
    "resnet20": Checkpoint("cifar10/resnet20.safetensors", lambda: ResNet(3), *_IMAGENET),
    "resnet32": Checkpoint("cifar10/resnet32.safetensors", lambda: ResNet(5), *_IMAGENET),
    "ella_resnet20": Checkpoint(
        "cifar10/ella_resnet20.safetensors", lambda: ResNet(3, projection=True, head="fc"), *_CIFAR
    ),
}


def cifar10(folder: Path, checkpoint: Checkpoint) -> Split:
    """The CIFAR-10 subset (5438 training, 1017 test images), normalised for one network.

    Args:
        folder: The data folder.
        checkpoint: The network that will read the images.

    Returns:
        Images ``[n, 3, 32, 32]`` in float32 and labels.
    """
    raw = _read(folder / "cifar10" / "cifar10_subset.npz")
    return Split(checkpoint.normalise(raw.x_train), raw.y_train, checkpoint.normalise(raw.x_test), raw.y_test)


def mnist(folder: Path) -> Split:
    """The MNIST subset (14262 training, 10000 test images): ``[n, 1, 28, 28]``, pixels / 255."""
    raw = _read(folder / "mnist" / "mnist_subset.npz")
    return Split(raw.x_train[:, None] / 255, raw.y_train, raw.x_test[:, None] / 255, raw.y_test)


def _read(path: Path) -> Split:
    with np.load(path) as file:
        x_train, y_train, x_test, y_test = (file[key] for key in ("x_train", "y_train", "x_test", "y_test"))
    labels = (torch.from_numpy(y.astype(np.int64)) for y in (y_train, y_test))
    return Split(torch.from_numpy(x_train), next(labels), torch.from_numpy(x_test), next(labels))


def digits(seed: int | None = 0, train: int = 1297) -> Split:
    """The 1797 digits of scikit-learn, ``[n, 1, 8, 8]`` in [0, 1], shuffled.

    Args:
        seed: Of the shuffle; ``None`` keeps their order.
        train: Training images; the others are for testing.
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    count = len(labels)
    order = torch.arange(count) if seed is None else torch.randperm(count, generator=generator(seed))
    x = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8)[order] / 16
    y = torch.tensor(labels, dtype=torch.long)[order]
    return Split(x[:train], y[:train], x[train:], y[train:])


def generated_images(channels: int, size: int, *, train: int, test: int, seed: int = 0) -> Split:
    """Ten classes of smooth random patterns under noise, for benchmarks without data.

    Args:
        channels: Channels of an image.
        size: Height and width of an image.
        train: Number of training images.
        test: Number of test images.
        seed: Seed of patterns, labels and noise.

    Returns:
        Images ``[n, channels, size, size]`` in float32 with unit variance, nearly, and labels.
    """
    source = generator(seed)
    coarse = torch.randn(10, channels, 4, 4, generator=source)
    patterns = F.interpolate(coarse, size=(size, size), mode="bilinear")
    labels = torch.randint(0, 10, (train + test,), generator=source)
    x = 0.25 * patterns[labels] + torch.randn(train + test, channels, size, size, generator=source)
    return Split(x[:train], labels[:train], x[train:], labels[train:])


def generated_tokens(vocabulary: int, length: int, *, train: int, test: int, seed: int = 0) -> Split:
    """Ten classes of token sequences, each class with its own frequencies; token 0 leads every sequence.

    Args:
        vocabulary: Number of tokens, the leading 0 included.
        length: Tokens in a sequence, the leading 0 included.
        train: Number of training sequences.
        test: Number of test sequences.
        seed: Seed of frequencies, labels and tokens.

    Returns:
        Tokens ``[n, length]`` in int64 and labels.
    """
    source = generator(seed)
    frequencies = torch.softmax(0.5 * torch.randn(10, vocabulary - 1, generator=source), dim=-1)
    labels = torch.randint(0, 10, (train + test,), generator=source)
    x = 1 + torch.multinomial(frequencies[labels], length - 1, replacement=True, generator=source)
    x = F.pad(x, (1, 0))
    return Split(x[:train], labels[:train], x[train:], labels[train:])
