"""Products with the Jacobian of one batch, column by column."""

from __future__ import annotations

import logging

import pytest
import torch

import lapwing as lw
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.products import columnwise
from lapwing.jacobian.products.columnwise import Columnwise
from tests.curvature.naive import surveyed
from tests.modules import Squared


def test_running_out_of_memory_is_said_and_not_gone_around(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    x = torch.ones(3, 2)
    products = Columnwise(surveyed(Network.of(torch.nn.Linear(2, 1)), lw.Gaussian(), x), x)
    block = torch.ones(3, 1)
    whole = products.push(block)
    monkeypatch.setattr(columnwise, "vmap", exhausted)
    with pytest.raises(torch.OutOfMemoryError):
        products.push(block)
    assert whole.flatten().tolist() == [3.0, 3.0, 3.0]


def test_what_it_costs_without_forward_mode_is_said_once_a_network(caplog: pytest.LogCaptureFixture) -> None:
    network = Network.of(Squared(custom=True))
    x = torch.ones(4, 3)
    model = surveyed(network, lw.Gaussian(), x)
    with caplog.at_level(logging.DEBUG, "lapwing"):
        for products in (Columnwise(model, x) for _ in range(2)):
            products.push(torch.ones(network.size, 1))
    assert [record.levelname for record in caplog.records] == ["INFO", "DEBUG"]
    assert "two backward passes" in caplog.records[0].message


def test_a_network_with_a_forward_mode_is_pushed_by_it(caplog: pytest.LogCaptureFixture) -> None:
    network = Network.of(torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 1)))
    x = torch.ones(3, 2)
    model = surveyed(network, lw.Gaussian(), x)
    with caplog.at_level(logging.DEBUG, "lapwing"):
        Columnwise(model, x).push(torch.ones(network.size, 1))
    assert not caplog.records
