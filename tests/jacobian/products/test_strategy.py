"""The cost rule: what it counts on known networks, and what it chooses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks.networks import ResNet, lenet
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.products.strategy import PRODUCTS, ExampleCost, Strategy
from lapwing.likelihoods import Gaussian
from tests.curvature.naive import surveyed

GIB = 2**28
"""Numbers of four bytes in a GiB."""


def cost_of(model: nn.Module, *shape: int) -> ExampleCost:
    x = torch.randn(2, *shape)
    given = surveyed(Network.of(model), Gaussian(), x)
    return ExampleCost.of(given, x, given.width)


LENET = cost_of(lenet(), 1, 28, 28)
RESNET = cost_of(ResNet(3), 3, 32, 32)
WIDE = cost_of(nn.Sequential(nn.Linear(784, 37), nn.ReLU(), nn.Linear(37, 37), nn.ReLU(), nn.Linear(37, 10)), 784)


def test_a_forward_pass_is_counted() -> None:
    assert LENET.forward == 6 * 25 * 576 + 16 * 150 * 64 + 256 * 100 + 100 * 10
    assert LENET.first == 6 * 25 * 576
    assert LENET.layers.rows == 10 * (6 * 26 + 16 * 151) and LENET.cotangents == 10


def test_what_has_no_layers_is_counted_too() -> None:
    cost = cost_of(nn.Sequential(nn.ConvTranspose2d(1, 2, 3), nn.Flatten(), nn.Linear(50, 4)), 1, 3, 3)
    assert cost.layers.rows == 4 * 20 and cost.layers.building > 0 and cost.forward >= 50 * 4


@pytest.mark.parametrize(
    ("cost", "columns", "gib", "examples", "strategy"),
    [
        (LENET, 1, 2, 1000, "explicit"),  # everything is kept
        (LENET, 32, 2, 1000, "explicit"),
        (LENET, 1, 2, 100_000, "traced"),  # 11 GB of rows are not
        (LENET, 64, 2, 100_000, "explicit"),
        (RESNET, 1, 2, 1000, "traced"),
        (RESNET, 32, 2, 1000, "explicit"),
        (RESNET, 1, 2, 100, "explicit"),
        (RESNET, 32, 0.01, 1000, "traced"),  # the rows of one example are too many
        (WIDE, 1, 2, 1000, "traced"),
        (WIDE, 32, 2, 1000, "explicit"),
    ],
)
def test_the_choice(cost: ExampleCost, columns: int, gib: float, examples: int, strategy: Strategy) -> None:
    assert cost.cheaper(columns, int(gib * GIB), examples) == strategy


def test_more_columns_cost_more_and_keeping_saves() -> None:
    for strategy in ("explicit", "traced"):
        costs = [RESNET.of_product(strategy, columns, cached=False) for columns in (5, 10, 20)]
        assert costs[0] < costs[1] < costs[2]
        saved = RESNET.of_product(strategy, 5, cached=False) - RESNET.of_product(strategy, 5, cached=True)
        assert saved >= RESNET.forward * (1 - 1 / PRODUCTS)
