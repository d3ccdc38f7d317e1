"""Loaders as training loops have them, read once and in order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from lapwing.ground.errors import UnsupportedError
from lapwing.integrations.callbacks import in_order, one_loader
from tests.posterior_cases import refused

DATA = TensorDataset(torch.arange(10))

LOADERS = {
    "shuffled": (DataLoader(DATA, batch_size=4, shuffle=True, drop_last=True), range(10)),
    "weighted": (DataLoader(DATA, batch_size=4, sampler=WeightedRandomSampler([1.0] * 10, 30)), range(10)),
    "a part": (DataLoader(DATA, batch_size=4, sampler=SubsetRandomSampler([7, 2, 5])), [2, 5, 7]),
    "batches": (DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 3, drop_last=True)), range(10)),
}


@pytest.mark.parametrize("name", LOADERS)
def test_each_example_once_in_the_order_of_the_data_set(name: str) -> None:
    loader, expected = LOADERS[name]
    read = [int(value) for _ in range(2) for (batch,) in in_order(loader) for value in batch]
    assert read == [*expected, *expected]


def test_what_is_collated_is_collated_and_lists_of_batches_are_read_as_they_are() -> None:
    loader = DataLoader(
        DATA, batch_size=5, shuffle=True, collate_fn=lambda rows: -torch.stack([row[0] for row in rows])
    )
    assert torch.equal(torch.cat([*in_order(loader)]), -torch.arange(10))
    batches: Any = [(torch.zeros(2, 1), torch.zeros(2))]
    assert in_order(batches) is batches
    made_by_the_data_set = DataLoader(DATA, batch_size=None)
    assert in_order(made_by_the_data_set) is made_by_the_data_set


def test_of_several_loaders_none_is_chosen() -> None:
    assert one_loader(None, "training", "train=") is None and one_loader([], "training", "train=") is None
    loader = LOADERS["shuffled"][0]
    assert all(one_loader(given, "training", "train=") is loader for given in (loader, [loader], {"a": loader}))
    with refused(UnsupportedError, "one loader of validation data. Got 2 of them. Try validation=loader"):
        one_loader([loader, loader], "validation", "validation=loader")
