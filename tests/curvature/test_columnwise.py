"""Products with the Jacobian of one batch, column by column."""

from __future__ import annotations

import pytest
import torch

import lapwing as lw
from lapwing.curvature import columnwise
from lapwing.curvature.columnwise import Columnwise
from lapwing.curvature.network import Network


def test_running_out_of_memory_is_said_and_not_gone_around(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    products = Columnwise(Network.of(torch.nn.Linear(2, 1)), lw.Gaussian(), torch.ones(3, 2))
    block = torch.ones(3, 1)
    whole = products.push(block)
    monkeypatch.setattr(columnwise, "vmap", exhausted)
    with pytest.raises(torch.OutOfMemoryError):
        products.push(block)
    assert whole.flatten().tolist() == [3.0, 3.0, 3.0]
