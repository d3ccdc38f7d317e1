"""Pairs drawn in one pass: uniform, none twice, each with its own input and target, however the data are cut."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lapwing.ground.data.sources import Data
from lapwing.ground.errors import DataError
from lapwing.structures.ella.sampling import Reservoir, fill
from tests.posterior_cases import normal

X, Y = torch.arange(12.0).view(12, 1), torch.arange(12)


def drawn(size: int, outputs: int, seed: int, cut: int = 5) -> Reservoir:
    found = Reservoir(size, outputs, torch.Generator().manual_seed(seed))
    fill(Data(list(zip(X.split(cut), Y.split(cut), strict=True))), found)
    return found


def codes(found: Reservoir, outputs: int) -> Tensor:
    return found.pairs.examples * outputs + found.pairs.outputs


@pytest.mark.parametrize("cut", [1, 5, 12])
def test_pairs_carry_their_inputs_and_targets_and_come_in_order(cut: int) -> None:
    found = drawn(7, 3, 0, cut)
    assert len(found.pairs) == 7
    inputs, targets = found.examples
    assert inputs.flatten().tolist() == targets.tolist() == found.pairs.examples.tolist()
    assert found.pairs.outputs.min() >= 0 and found.pairs.outputs.max() < 3
    listed = codes(found, 3)
    assert listed.tolist() == sorted(set(listed.tolist()))


def test_a_reservoir_larger_than_the_data_holds_every_pair_once() -> None:
    assert codes(drawn(100, 3, 0), 3).tolist() == list(range(36))


def test_every_pair_is_alike_likely() -> None:
    counts = torch.zeros(24)
    for seed in range(150):
        counts[codes(drawn(6, 2, seed, cut=8), 2)] += 1
    expected = 150 * 6 / 24
    spread = (expected * (1 - 6 / 24)) ** 0.5
    assert ((counts - expected).abs() < 4 * spread).all()
    assert float(((counts - expected) / spread).square().mean()) < 2.0
    assert abs(float(counts[:16].sum()) / 150 - 4) < 0.3  # the first batch has two thirds


def test_several_are_filled_in_one_pass() -> None:
    class Once:
        passes = 0

        def __iter__(self):
            self.passes += 1
            yield {"x": normal(8, 2), "mask": torch.ones(8), "labels": torch.zeros(8)}

    source, generator = Once(), torch.Generator().manual_seed(0)
    first, second = Reservoir(3, 2, generator), Reservoir(2, 1, generator)
    fill(Data(source), first, second)
    assert source.passes == 1
    assert first.pairs.inputs["x"].shape == (3, 2) and second.examples[0]["mask"].shape == (2,)
    assert second.pairs.outputs.tolist() == [0, 0]


def test_inputs_that_are_not_finite_are_refused() -> None:
    with pytest.raises(DataError, match="finite inputs"):
        fill(Data((torch.full((3, 1), torch.nan), Y[:3])), Reservoir(2, 1, torch.Generator()))
