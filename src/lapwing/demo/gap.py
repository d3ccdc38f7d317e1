"""A curve in one dimension whose data have a gap: what the error bars do where there is nothing to learn from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from lapwing.demo.digits import Pair, one_thread
from lapwing.ground import probes

NOISE = 0.15
EDGES = (-4.0, -1.0, 1.5, 4.0)


@final
@dataclass(frozen=True, eq=False)
class Gap:
    """The curve ``sin 2x + x/3`` with noise, seen left and right of a gap.

    Args:
        train: Inputs ``[n, 1]`` and targets ``[n, 1]`` outside the gap.
        validation: More of them, to tell the noise by.
        test: More of them, to score on.
        unseen: Inputs and targets inside the gap.
    """

    train: Pair
    validation: Pair
    test: Pair
    unseen: Pair


def curve(x: Tensor) -> Tensor:
    """What the network should learn."""
    return torch.sin(2 * x) + x / 3


def gap(seed: int) -> Gap:
    """A draw of the data: 80 points to train on, 200 to score on, 100 in the gap, 80 held out.

    Args:
        seed: Of inputs and noise.
    """
    generator = torch.Generator().manual_seed(seed)
    like = torch.zeros(1, dtype=torch.float64)

    def draw(n: int, low: float, high: float) -> Pair:
        x = low + (high - low) * torch.rand([n, 1], generator=generator, dtype=torch.float64)
        return x, curve(x) + NOISE * probes.gaussian([n, 1], like=like, generator=generator)

    def sides(n: int) -> Pair:
        parts = draw(n // 2, EDGES[0], EDGES[1]), draw(n // 2, EDGES[2], EDGES[3])
        x, y = (torch.cat(columns) for columns in zip(*parts, strict=True))
        return x, y

    train, test = sides(80), sides(200)
    unseen = draw(100, EDGES[1], EDGES[2])
    return Gap(train, sides(80), test, unseen)


def fitted(data: Pair, seed: int, steps: int = 1000) -> nn.Sequential:
    """A network of two hidden layers, 32 units each, trained on all the data at once with a little weight decay.

    Args:
        data: Training inputs and targets.
        seed: Of the initial weights.
        steps: Steps of Adam.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    x, y = data
    model = model.to(x.dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=1e-4)
    with one_thread():
        for _ in range(steps):
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
    return model.eval()
