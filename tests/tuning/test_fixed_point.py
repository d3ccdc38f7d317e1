"""MacKay's step stays at the maximum, and how far it is from there is told from how it moves."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lapwing.tuning.fixed_point import distance, fixed_point
from lapwing.tuning.gradient import climb
from lapwing.tuning.hyperparameters import Hyperparameters
from tests.tuning.test_gradient import made


@pytest.mark.parametrize("observations", [200.0, 20.0])
def test_the_maximum_is_where_mackays_step_stays(observations: float, generator: torch.Generator) -> None:
    """Also where the data determined more directions than half their number."""
    evidence = replace(made(2, observations, generator), square_norms=torch.tensor([30.0, 90.0]).double())
    start = Hyperparameters(torch.ones(2, dtype=torch.float64), torch.ones((), dtype=torch.float64))
    top = list(climb(evidence, start, with_noise=True, steps=200))[-1].hyperparameters
    gamma = evidence.effective_dimensions(top.precisions, top.scale)
    assert (float(gamma.sum()) > observations / 2) == (observations < 100)
    error = torch.tensor(evidence.misfit, dtype=torch.float64)
    there = fixed_point(gamma, evidence.square_norms, error, top.scale, observations, True)
    torch.testing.assert_close(there.values, top.values, rtol=1e-6, atol=0)
    assert fixed_point(gamma, evidence.square_norms, error, top.scale, observations, False).scale is top.scale


def test_the_noise_stays_positive_where_more_was_determined_than_observed() -> None:
    one = torch.tensor(1.0).double()
    for gamma in (10.0, 49.9, 80.0):
        assert float(fixed_point(gamma * one.view(1), one.view(1), one, one, 50.0, True).scale) > 0
    few, many = (fixed_point(x * one.view(1), one.view(1), 3 * one, 2 * one, 50.0, True).scale for x in (25.0, 26.0))
    assert (float(few), float(many)) == (pytest.approx(25 / 3), pytest.approx(50 / (3 + 13)))


def test_weights_of_no_length_have_the_largest_precision_considered() -> None:
    one = torch.ones(2).double()
    assert fixed_point(one, 0 * one, one[0], one[0], 50.0, True).precisions.tolist() == [1e12, 1e12]


@pytest.mark.parametrize(("gamma", "expected"), [(4.9, 5.1 / 3.0), (5.0, 5.0 / 3.0), (5.1, 10.0 / (3.0 + 5.1 / 2.0))])
def test_noise_is_mackays_step_up_to_half_of_the_observations_and_that_of_em_beyond(
    gamma: float, expected: float
) -> None:
    total, misfit, scale = (torch.tensor(value, dtype=torch.float64) for value in (gamma, 3.0, 2.0))
    found = fixed_point(total.view(1), torch.ones(1).double(), misfit, scale, 10.0, True)
    assert float(found.scale) == pytest.approx(expected, rel=1e-12) and float(found.precisions) == gamma


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
