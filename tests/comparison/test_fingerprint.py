"""What tells a comparison from others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lapwing as lw
from lapwing.comparison.fingerprint import fingerprint, scoring_fingerprint


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(12, 2, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3


def told(**changes: Any) -> str:
    torch.manual_seed(0)
    arguments: dict[str, Any] = {"model": nn.Linear(2, 3), "train": pair(), "test": pair()} | changes
    return fingerprint(**arguments)


def told_of_scoring(**changes: Any) -> str:
    arguments: dict[str, Any] = {"others": {"validation": pair()}, "ood": pair()[0] + 9, "choices": ("link", 0)}
    return scoring_fingerprint(**arguments | changes)


def test_readings_of_the_same_data_have_one_whatever_the_order_and_the_batches() -> None:
    loader = DataLoader(TensorDataset(*pair()), batch_size=5, shuffle=True)
    assert told() == told(train=loader, test=loader)
    assert told_of_scoring() == told_of_scoring(others={"validation": loader})


@pytest.mark.parametrize("name", ["weights", "labels", "inputs", "test"])
def test_any_other_network_or_data_have_another(name: str) -> None:
    x, y = pair()
    changes: dict[str, dict[str, Any]] = {
        "weights": {"model": nn.Linear(2, 3, bias=False)},
        "labels": {"train": (x, (y + 1) % 3 * (y > 0))},
        "inputs": {"train": (x * 2, y)},
        "test": {"test": (x + 1e-3, y)},
    }
    assert told(**changes[name]) != told()


def test_a_network_with_other_views_has_another() -> None:
    model = nn.Linear(2, 3)
    mirrored, turned = (
        told(model=lw.TestTimeAugmentation(model, [view])) for view in (lambda x: x.flip(-1), lambda x: -x)
    )
    again = told(model=lw.TestTimeAugmentation(model, [lambda x: x.flip(-1)]))
    assert mirrored == again != turned


@pytest.mark.parametrize("name", ["data", "name", "ood", "choices"])
def test_whatever_else_is_scored_has_another(name: str) -> None:
    x, y = pair()
    changes: dict[str, dict[str, Any]] = {
        "data": {"others": {"validation": (x + 1e-3, y)}},
        "name": {"others": {"shift fog": (x, y)}},
        "ood": {"ood": None},
        "choices": {"choices": ("link", 1)},
    }
    assert told_of_scoring(**changes[name]) != told_of_scoring()


class Augmented:
    """Inputs moved anew at every reading."""

    def __init__(self, y: torch.Tensor) -> None:
        self.y = y

    def __iter__(self) -> Any:
        x, _ = pair()
        yield x + torch.rand(12, 2), self.y


def test_of_augmented_data_the_targets_count() -> None:
    _, y = pair()
    assert told(train=Augmented(y)) == told(train=Augmented(y)) != told(train=Augmented((y + 1) % 3 * (y > 0)))


def test_of_a_loader_that_leaves_others_out_at_every_reading_their_number_counts() -> None:
    x, y = torch.arange(26.0).view(13, 2), torch.arange(13)
    loader = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True, drop_last=True)
    assert len({told(train=loader) for _ in range(8)}) == 1
