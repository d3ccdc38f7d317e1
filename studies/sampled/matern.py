"""The toy of Antorán (2024), chapters 5 and 6: a draw from a Matérn process left and right of a gap, and a network."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from benchmarks.data import Pair, generator, uniform
from benchmarks.networks import seeded
from benchmarks.training import train as descended
from lapwing.ground import probes

LEFT, GAP, RIGHT = (-2.0, -1.0), (-1.0, 0.5), (0.5, 2.5)
LENGTH, NOISE = 0.5, 0.15
WIDTH = 50


@dataclass(frozen=True)
class Toy:
    """A draw of the data, inputs and targets standardised by the training data.

    Args:
        train: To train on.
        sides: To score on beside the training data.
        gap: To score on between them.
        noise: Standard deviation of the noise, in units of the standardised targets.
    """

    train: Pair
    sides: Pair
    gap: Pair
    noise: float

    @property
    def precision(self) -> float:
        """Of the noise."""
        return self.noise**-2

    @classmethod
    def draw(cls, seed: int, points: int = 200) -> Toy:
        """The draw of a seed.

        Args:
            seed: Of everything.
            points: Points on each side to train on; half as many there, and as many in the gap, to score on.
        """
        source = generator(seed)
        few = points // 2
        parts = ((points, LEFT), (points, RIGHT), (few, LEFT), (few, RIGHT), (points, GAP))
        x = torch.cat([uniform(n, *part, source) for n, part in parts])[:, 0]
        y = process(x, source) + NOISE * probes.gaussian(x.shape, like=x, generator=source)
        train = slice(0, 2 * points)
        x, scaled = (x - x[train].mean()) / x[train].std(), (y - y[train].mean()) / y[train].std()
        sizes = (2 * points, 2 * few, points)
        pairs = zip(x[:, None].split(sizes), scaled[:, None].split(sizes), strict=True)
        return cls(*pairs, noise=NOISE / float(y[train].std()))


def process(x: Float[Tensor, " n"], source: torch.Generator) -> Float[Tensor, " n"]:
    """A draw from the Gaussian process with covariance ``(1 + √3 r/ℓ) exp(-√3 r/ℓ)`` (Matérn, smoothness 3/2)."""
    distance = math.sqrt(3) * (x[:, None] - x).abs() / LENGTH
    covariance = (1 + distance) * torch.exp(-distance)
    root = torch.linalg.cholesky(covariance + 1e-9 * torch.eye(len(x), dtype=x.dtype))
    return root @ probes.gaussian(x.shape, like=x, generator=source)


def network(seed: int, width: int = WIDTH) -> nn.Sequential:
    """Two hidden layers, each normalised without weights before its ReLU, and a head without a bias, in float64.

    Example:
        >>> sum(p.numel() for p in network(0).parameters())
        2700
    """

    def layers() -> nn.Sequential:
        parts: list[nn.Module] = []
        for inputs in (1, width):
            parts += [nn.Linear(inputs, width), nn.LayerNorm(width, eps=1e-12, elementwise_affine=False), nn.ReLU()]
        return nn.Sequential(*parts, nn.Linear(width, 1, bias=False)).double()

    return seeded(layers, seed)


def train(model: nn.Module, pair: Pair, steps: int) -> nn.Module:
    """Adam on the mean squared error of all data at once, with a little weight decay; in place."""
    return descended(model, *pair, epochs=steps, rate=1e-2, batch=len(pair[1]), decay=1e-4, loss=F.mse_loss)
