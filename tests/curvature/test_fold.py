"""Two readings of the training data are compared, and what differs is named."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

import lapwing as lw
from lapwing.ground.errors import DataError, DataWarning
from tests.pairwise import in_turn
from tests.posterior_cases import STRUCTURES, labels, mlp, normal, refused

X, Y = normal(20, 3), labels(20, classes=3)


PAIRS = TensorDataset(X, Y)


def fit(data: Any, structure: str = "full-weights", likelihood: Any = None) -> lw.Posterior:
    return lw.Laplace(likelihood or lw.Categorical(), structure=STRUCTURES[structure]).fit(mlp(3), data)


class Reading:
    """A loader that calls a function for each pass over the data."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches
        self.passes = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.passes += 1
        yield from self.batches(self.passes)


class Augmented(Dataset):
    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return X[index] + 0.1 * torch.randn(3, dtype=torch.float64), Y[index]


GOOD: dict[str, Any] = {
    "loader": DataLoader(PAIRS, batch_size=6),
    "shuffled": DataLoader(PAIRS, batch_size=6, shuffle=True),
    "nothing to drop": DataLoader(PAIRS, batch_size=5, drop_last=True),
    "list": [(X, Y)],
    "pair": (X, Y),
    "iterable": Reading(lambda _: [(X, Y)]),
    "batches of other sizes": Reading(lambda n: [(X[:n], Y[:n]), (X[n:], Y[n:])]),
}


@pytest.mark.parametrize(("data", "structure"), in_turn(GOOD, STRUCTURES, whole=("shuffled", "batches of other sizes")))
def test_good_data_pass_in_silence(data: str, structure: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        posterior = fit(GOOD[data], structure)
    assert posterior.totals.observations == len(X)


def test_the_second_reading_stops_where_the_order_is_fixed() -> None:
    seen: list[int] = []

    def batches(reading: int) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, 20, 5):
            seen.append(reading)
            yield X[start : start + 5], Y[start : start + 5]

    data = Reading(batches)
    fit(data)
    assert seen.count(data.passes) == 1 and seen.count(data.passes - 1) == 4


@pytest.mark.parametrize("structure", STRUCTURES)
def test_targets_shuffled_away_from_their_inputs_are_an_error(structure: str) -> None:
    def batches(reading: int) -> list[tuple[Tensor, Tensor]]:
        order = torch.randperm(20, generator=torch.Generator().manual_seed(reading))
        return [(X, Y[order])]

    with refused(DataError, "the same target for the same input"):
        fit(Reading(batches), structure)


@pytest.mark.parametrize("shuffle", [False, True])
def test_dropped_batches_are_named(shuffle: bool) -> None:
    data = DataLoader(PAIRS, batch_size=6, drop_last=True, shuffle=shuffle)
    with pytest.warns(DataWarning, match=r"gave 18 of its dataset's 20 .* Try drop_last=False") as caught:
        fit(data)
    assert len(caught) == 1


def test_samplers_that_leave_examples_out_are_named() -> None:
    data = DataLoader(PAIRS, batch_size=6, sampler=RandomSampler(PAIRS, num_samples=7))
    with pytest.warns(DataWarning, match=r"gave 7 of its dataset's 20 .* a sampler"):
        fit(data)


@pytest.mark.parametrize("shuffle", [False, True])
def test_augmentation_is_named(shuffle: bool) -> None:
    with pytest.warns(DataWarning, match=r"other inputs\. Try the dataset without random"):
        fit(DataLoader(Augmented(), batch_size=6, shuffle=shuffle))


def test_random_labels_are_named() -> None:
    data = Reading(lambda n: [(X, labels(20, classes=3, seed=n))])
    with pytest.warns(DataWarning, match=r"other targets\. Try a loader without"):
        fit(data)


def test_another_number_of_examples_is_named() -> None:
    data = Reading(lambda n: [(X[: 10 + n], Y[: 10 + n])])
    with pytest.warns(DataWarning, match=r"differ: \d+ examples, then \d+\. Try drop_last=False"):
        fit(data)


def test_observations_count_with_the_weight_of_the_likelihood() -> None:
    found = fit((X, normal(20, 3, seed=1)), likelihood=lw.Gaussian(4.0, weight=3.0))
    assert found.totals.observations == 3.0 * 20 * 3


def test_real_targets_are_compared_too() -> None:
    data = Reading(lambda n: [(X, normal(20, 3, seed=n))])
    with pytest.warns(DataWarning, match="other targets"):
        fit(data, likelihood=lw.Gaussian())
