"""What tells a comparison from others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lapwing.comparison.fingerprint import fingerprint


def told(**changes: Any) -> str:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 2, generator=generator), torch.arange(12) % 3
    torch.manual_seed(0)
    arguments: dict[str, Any] = {"model": nn.Linear(2, 3), "train": (x, y), "scored": {"test": (x, y)}}
    arguments |= {"ood": x + 9, "choices": ("link", 0)} | changes
    return fingerprint(**arguments)


def test_readings_of_the_same_data_have_one_whatever_the_order_and_the_batches() -> None:
    x, y = torch.randn(12, 2, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
    loader = DataLoader(TensorDataset(x, y), batch_size=5, shuffle=True)
    assert told() == told(train=loader, scored={"test": loader}) == told(train=(x * 2, y))


@pytest.mark.parametrize("name", ["weights", "labels", "test", "name", "ood", "choices"])
def test_anything_else_has_another(name: str) -> None:
    x, y = torch.randn(12, 2, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
    changes: dict[str, dict[str, Any]] = {
        "weights": {"model": nn.Linear(2, 3, bias=False)},
        "labels": {"train": (x, (y + 1) % 3 * (y > 0))},
        "test": {"scored": {"test": (x + 1e-3, y)}},
        "name": {"scored": {"other": (x, y)}},
        "ood": {"ood": None},
        "choices": {"choices": ("link", 1)},
    }
    assert told(**changes[name]) != told()
