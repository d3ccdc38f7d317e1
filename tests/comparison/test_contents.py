"""Which entries of a comparison are the same: by their weights and their code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.comparison.contents import checksum_of_entry
from lapwing.evaluation.plain_network import PlainNetwork


def test_entries_of_other_weights_are_others() -> None:
    one, other = PlainNetwork(nn.Linear(2, 3)), PlainNetwork(nn.Linear(2, 3))
    ensembles = [lw.baselines.DeepEnsemble([each.model, nn.Linear(2, 3)]) for each in (one, one)]
    assert checksum_of_entry(one) != checksum_of_entry(other)
    assert checksum_of_entry(ensembles[0]) != checksum_of_entry(ensembles[1])
    assert checksum_of_entry(ensembles[0]) == checksum_of_entry(lw.baselines.DeepEnsemble(ensembles[0].models))


def test_entries_of_other_views_are_others() -> None:
    network = nn.Conv2d(1, 2, 3)

    def averaged(view: Callable[[Tensor], Tensor]) -> PlainNetwork:
        return PlainNetwork(nn.Sequential(lw.TestTimeAugmentation(network, [view])))

    mirrored, upside_down = averaged(lambda x: x.flip(-1)), averaged(lambda x: x.flip(-2))
    assert checksum_of_entry(mirrored) == checksum_of_entry(averaged(lambda x: x.flip(-1)))
    assert checksum_of_entry(mirrored) != checksum_of_entry(upside_down)


class Activated(nn.Module):
    """A network that calls what it was given, and holds a method of its own and, out of sight, itself."""

    def __init__(self, activation: Any) -> None:
        super().__init__()
        self.activation = activation
        self.way = self.straight
        self.whole = [self]

    def straight(self, x: Tensor) -> Tensor:
        return self.activation(x)


class Shift:
    """A view of the input that is an object."""

    def __init__(self, places: int) -> None:
        self.places = places

    def __call__(self, x: Tensor) -> Tensor:
        return x.roll(self.places, -1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.relu, torch.tanh),
        (nn.functional.silu, nn.functional.gelu),
        (Shift(1), Shift(2)),
        ({"first": nn.functional.silu}, {"first": nn.functional.gelu}),
        ([torch.relu, torch.relu, torch.tanh], [torch.relu, torch.tanh, torch.tanh]),
        ([nn.functional.silu, nn.functional.gelu, nn.functional.gelu], [nn.functional.silu, nn.functional.gelu]),
    ],
    ids=["built-in", "functions", "objects", "by name", "repeated built-in", "repeated"],
)
def test_entries_of_networks_that_hold_other_functions_are_others(one: Any, other: Any) -> None:
    first, same, second = (checksum_of_entry(PlainNetwork(Activated(held))) for held in (one, one, other))
    assert first == same != second


def test_entries_of_several_networks_tell_which_is_which() -> None:
    one, other = nn.Linear(2, 3), nn.Linear(2, 3)
    orders = [one, other, one], [one, other, other]
    first, second = (checksum_of_entry(lw.baselines.DeepEnsemble(networks)) for networks in orders)
    assert first != second
