"""The cost rule: what it counts on known networks, and what it chooses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks.networks import ResNet, lenet
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.products.costs import PRODUCTS, Form, Work
from lapwing.likelihoods import Gaussian
from tests.curvature.naive import surveyed

GIB = 2**28
"""Numbers of four bytes in a GiB."""


def work_of(model: nn.Module, *shape: int) -> Work:
    x = torch.randn(2, *shape)
    given = surveyed(Network.of(model), Gaussian(), x)
    return Work.of(given, x, given.width)


LENET = work_of(lenet(), 1, 28, 28)
RESNET = work_of(ResNet(3), 3, 32, 32)
WIDE = work_of(nn.Sequential(nn.Linear(784, 37), nn.ReLU(), nn.Linear(37, 37), nn.ReLU(), nn.Linear(37, 10)), 784)


def test_a_forward_pass_is_counted() -> None:
    assert LENET.forward == 6 * 25 * 576 + 16 * 150 * 64 + 256 * 100 + 100 * 10
    assert LENET.first == 6 * 25 * 576
    assert LENET.rows == 10 * (6 * 26 + 16 * 151) and LENET.cotangents == 10


def test_what_has_no_layers_is_counted_too() -> None:
    work = work_of(nn.Sequential(nn.ConvTranspose2d(1, 2, 3), nn.Flatten(), nn.Linear(50, 4)), 1, 3, 3)
    assert work.rows == 4 * 20 and work.building > 0 and work.forward >= 50 * 4


@pytest.mark.parametrize(
    ("work", "columns", "gib", "examples", "form"),
    [
        (LENET, 1, 2, 1000, "layers"),  # everything is kept
        (LENET, 32, 2, 1000, "layers"),
        (LENET, 1, 2, 100_000, "split"),  # 11 GB of rows are not
        (LENET, 64, 2, 100_000, "layers"),
        (RESNET, 1, 2, 1000, "split"),
        (RESNET, 32, 2, 1000, "layers"),
        (RESNET, 1, 2, 100, "layers"),
        (RESNET, 32, 0.01, 1000, "split"),  # the rows of one example are too many
        (WIDE, 1, 2, 1000, "split"),
        (WIDE, 32, 2, 1000, "layers"),
    ],
)
def test_the_choice(work: Work, columns: int, gib: float, examples: int, form: Form) -> None:
    assert work.choose(columns, int(gib * GIB), examples) == form


def test_more_columns_cost_more_and_keeping_saves() -> None:
    for form in ("layers", "split"):
        costs = [RESNET.cost(form, columns, kept=False) for columns in (5, 10, 20)]
        assert costs[0] < costs[1] < costs[2]
        saved = RESNET.cost(form, 5, kept=False) - RESNET.cost(form, 5, kept=True)
        assert saved >= RESNET.forward * (1 - 1 / PRODUCTS)
