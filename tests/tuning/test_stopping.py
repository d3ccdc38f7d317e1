"""When expectation maximisation has settled."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from lapwing.posteriors.dimension import LEAST, Dimensions
from lapwing.tuning.stopping import SHARE, distance, enough, moves_of
from tests.tuning.test_maximisation import N, found


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9, -0.1, -0.6, -0.9])
def test_the_distance_of_moves_that_shrink_is_their_sum(rate: float) -> None:
    moves = torch.tensor([0.3 * rate**k for k in range(400)]).double()
    left = distance(moves[5:6], moves[4:5])
    torch.testing.assert_close(left, moves[5:].sum().abs().view(1))


def test_each_precision_has_its_own_direction_and_all_the_largest_rate() -> None:
    left = distance(torch.tensor([0.2, 0.1, 0.0]), torch.tensor([-0.4, 0.1, 0.1]))
    torch.testing.assert_close(left, torch.tensor([0.2 / 1.5, 0.1 / 0.5, 0.0]))


def test_a_first_move_is_all_there_is_to_go_by() -> None:
    assert distance(torch.tensor([0.5, -0.25]), None).tolist() == [0.5, 0.25]


@pytest.mark.parametrize("before", [0.1, -0.1])
def test_moves_that_grow_are_not_near(before: float) -> None:
    assert float(distance(torch.tensor([0.2]), torch.tensor([before]))) > 1


def test_only_what_may_move_and_matters_is_waited_for() -> None:
    expected = found()
    moved = expected.precisions * torch.tensor([2.0, 0.5]).double()
    waited = moves_of(expected, moved, 3 * expected.scale, True)
    assert waited.tolist() == pytest.approx([math.log(2), -math.log(2), math.log(3)])
    assert moves_of(expected, moved, 3 * expected.scale, False).tolist() == pytest.approx(
        [math.log(2), -math.log(2), 0]
    )
    pruned = replace(expected, dimensions=Dimensions.exact(torch.tensor([LEAST, 5.0]).double()))
    assert moves_of(pruned, moved, expected.scale, True).tolist() == pytest.approx([0, -math.log(2), 0])


def test_nothing_need_be_nearer_than_half_its_standard_error() -> None:
    gamma, errors = torch.tensor([4.0, 8.0]).double(), torch.tensor([0.4, 0.0]).double()
    drawn = replace(found(), dimensions=Dimensions(gamma, errors, 12.0, 0.5))
    torch.testing.assert_close(enough(drawn, 1e-3), torch.tensor([SHARE * 0.1, 1e-3, SHARE * 0.5 / (N - 12)]).double())
    assert enough(found(), 1e-3).tolist() == [1e-3] * 3
