"""Digits, a convolutional network of 15 thousand weights for them, and its training, for benchmarks and studies."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from benchmarks.data import Split

WEIGHTS = 15_000
CHANNELS = (8, 16)
CLASSES = 10


def digit_cnn(
    pixels: Literal[28, 8] = 28, *, kernel: Literal[5, 3] = 5, hidden: int | None = None, seed: int = 0
) -> nn.Sequential:
    """Two convolutions with pooling and two linear layers, for digits in grey.

    The width of the hidden layer brings the network closest to 15,000 weights:

        pixels  kernel  features  hidden  weights
            28       5       256      43   14,915
            28       3       400      33   14,821
             8       5        64     154   14,984
             8       3        64     183   14,983

    Args:
        pixels: Height and width of an image; the convolutions pad images of 8 pixels only.
        kernel: Height and width of the filters.
        hidden: Another width of the hidden layer.
        seed: Of the initial weights.

    Example:
        >>> sum(p.numel() for p in digit_cnn().parameters()), digit_cnn()(torch.zeros(2, 1, 28, 28)).shape
        (14915, torch.Size([2, 10]))
    """
    padding = kernel // 2 if pixels == 8 else 0
    side = pixels
    for _ in CHANNELS:
        side = (side + 2 * padding - kernel + 1) // 2
    narrow, wide = CHANNELS
    features = wide * side**2
    filters = narrow * (kernel**2 + 1) + wide * (narrow * kernel**2 + 1)
    width = round((WEIGHTS - filters - CLASSES) / (features + 1 + CLASSES)) if hidden is None else hidden
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, narrow, kernel, padding=padding),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(narrow, wide, kernel, padding=padding),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(features, width),
            nn.ReLU(),
            nn.Linear(width, CLASSES),
        ).eval()


def digits(seed: int = 0, train: int = 1297) -> Split:
    """The 1797 digits of scikit-learn, ``[n, 1, 8, 8]`` in [0, 1], shuffled.

    Args:
        seed: Of the shuffle.
        train: Training images; the others are for testing.
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    x = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8)[order] / 16
    y = torch.tensor(labels, dtype=torch.long)[order]
    return Split(x[:train], y[:train], x[train:], y[train:])


def train(
    model: nn.Module,
    x: Float[Tensor, "n 1 h w"],
    y: Int[Tensor, " n"],
    epochs: int = 20,
    lr: float = 5e-3,
    weight_decay: float = 0.0,
    seed: int = 0,
) -> nn.Module:
    """Adam on the mean cross-entropy plus ``γ/2 ‖θ‖²``, batches of 100, learning rate falling to zero along a cosine.

    With ``γ = α / n`` the minimum is the MAP estimate under the prior precision ``α``.

    Args:
        model: Network to train, in place.
        x: Images.
        y: Labels.
        epochs: Passes over them.
        lr: First learning rate.
        weight_decay: γ.
        seed: Of the order of the batches.

    Returns:
        The same network, in evaluation mode.
    """
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=lr, weight_decay=weight_decay)
    steps = epochs * -(-len(y) // 100)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(steps, 1))
    model.train()
    for _ in range(epochs):
        for index in torch.randperm(len(y), generator=generator).to(y.device).split(100):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x[index]), y[index]).backward()
            optimiser.step()
            schedule.step()
    return model.eval()


def accuracy(model: nn.Module, x: Float[Tensor, "n 1 h w"], y: Int[Tensor, " n"]) -> float:
    """Share of the images whose largest logit is that of the label."""
    with torch.no_grad():
        right = [(model(a).argmax(-1) == b).double().sum() for a, b in zip(x.split(1000), y.split(1000), strict=True)]
    return float(sum(right) / len(y))
