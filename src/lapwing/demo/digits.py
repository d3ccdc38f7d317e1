"""Handwritten digits, 8 × 8 pixels: the data, the network, its training."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from torch import Tensor, nn

from lapwing.ground.errors import ConfigError
from lapwing.ground.version import with_extra

Pair: TypeAlias = tuple[Tensor, Tensor]
"""Inputs and targets."""

CLASSES = 10
UNSEEN = 3


@final
@dataclass(frozen=True, eq=False)
class Digits:
    """One split of the digits.

    Args:
        train: Images ``[n, 1, 8, 8]`` in [0, 1] and labels from 0, to train on.
        validation: To tune on.
        test: To score on.
        unseen: Images of the digits that are in none of these, their labels 0.
        held_out: Which digits those are.
    """

    train: Pair
    validation: Pair
    test: Pair
    unseen: Pair
    held_out: tuple[int, ...]


def digits(seed: int, train: int = 300, validation: int = 200, test: int = 750) -> Digits:
    """A split of the 1797 digits that come with scikit-learn (Alpaydin & Kaynak 1998).

    Three digits are held out, other ones for each seed: 0, 1, 2 for seed 0, then 2, 3, 4, and so on round the clock.

    Args:
        seed: Picks the digits held out, and shuffles the rest.
        train: Training examples.
        validation: Validation examples.
        test: Test examples, and most examples of unseen digits.

    Raises:
        ConfigError: If scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ConfigError("scikit-learn, which has the digits", str(error), with_extra("demo")) from error
    pixels, digit = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    labels = torch.tensor(digit)
    held_out = tuple((2 * seed + k) % CLASSES for k in range(UNSEEN))
    kept = [digit for digit in range(CLASSES) if digit not in held_out]
    foreign = torch.isin(labels, torch.tensor(held_out))
    x, y = images[~foreign], torch.searchsorted(torch.tensor(kept), labels[~foreign])
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    parts = order.split([train, validation, test, len(x) - train - validation - test])
    pairs = [(x[part], y[part]) for part in parts]
    unseen = images[foreign][:test]
    zeros = torch.zeros(len(unseen), dtype=torch.long)
    return Digits(pairs[0], pairs[1], pairs[2], (unseen, zeros), held_out)


def trained(data: Pair, seed: int, epochs: int = 200) -> nn.Sequential:
    """A small convolutional network trained as is usual: Adam until the training data are fitted, no regulariser.

    Args:
        data: Training images and labels.
        seed: Of the initial weights and the order of the batches.
        epochs: Passes over the data, in batches of 32.

    Cost:
        About three seconds.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = network(CLASSES - UNSEEN)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, y = data
    with one_thread():
        for _ in range(epochs):
            for batch in torch.randperm(len(x), generator=generator).split(32):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
                optimizer.step()
    return model.eval()


@contextmanager
def one_thread() -> Generator[None, None, None]:
    """Steps this small wait longer for a second thread than it saves them, ten times longer on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # noqa: TID251, the demo is the caller, and puts it back
    try:
        yield
    finally:
        torch.set_num_threads(threads)  # noqa: TID251


def network(classes: int) -> nn.Sequential:
    """Two convolutions and a linear layer, 1703 weights for seven classes."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, classes),
    )
