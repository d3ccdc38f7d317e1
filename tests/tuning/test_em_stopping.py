"""When EM may stop: how far precisions are from where their moves take them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from lapwing.linear.evidence import LogEvidence
from lapwing.linear.log_det_ratio import Spectrum
from lapwing.linear.tangent import Mode
from lapwing.posteriors.dimension import LEAST, Dimensions
from lapwing.tuning.choices import distance
from lapwing.tuning.em import SHARE, enough, moves_of
from lapwing.tuning.expectation import Expected, State
from tests.posterior_cases import normal

N = 50.0


def found() -> Expected:
    """What expectation might say of two groups with many directions each."""
    eigenvalues = torch.logspace(-2, 3, 20).double()
    norms, sizes = torch.tensor([2.0, 0.5]).double(), torch.tensor([12.0, 11.0]).double()
    evidence = LogEvidence(Spectrum(eigenvalues, torch.arange(20) % 2), norms, sizes, 70.0, 40.0, N)
    alpha, s = torch.tensor([3.0, 0.2]).double(), torch.tensor(0.7).double()
    mode = Mode(normal(23), 70.0, 40.0, 0.0, 1, 1, "converged")
    dimensions = Dimensions.exact(evidence.effective_dimensions(alpha, s))
    return Expected(State(alpha, s), mode, norms, dimensions, evidence)


def test_the_error_of_the_noise_is_that_of_what_is_left_of_the_observations() -> None:
    """``N - γ``, or γ where that is more: the step of expectation maximisation is taken there."""
    expected = found()
    gamma = expected.gamma
    for observations, free in ((N, max(N - gamma, gamma)), (1.2 * gamma, gamma)):
        dimensions = Dimensions(expected.dimensions.groups, torch.tensor([0.1, 0.2]).double(), gamma, 0.3)
        settled = enough(replace(expected, dimensions=dimensions), observations, 1e-9) / SHARE
        assert float(settled[-1]) == pytest.approx(0.3 / free)
        torch.testing.assert_close(settled[:2], torch.tensor([0.1, 0.2]).double() / dimensions.groups)


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
    moved, scale = expected.state.precisions * torch.tensor([2.0, 0.5]).double(), expected.state.scale
    waited = moves_of(expected, moved, 3 * scale, True)
    assert waited.tolist() == pytest.approx([math.log(2), -math.log(2), math.log(3)])
    assert moves_of(expected, moved, 3 * scale, False).tolist() == pytest.approx([math.log(2), -math.log(2), 0])
    pruned = replace(expected, dimensions=Dimensions.exact(torch.tensor([LEAST, 5.0]).double()))
    assert moves_of(pruned, moved, scale, True).tolist() == pytest.approx([0, -math.log(2), 0])


def test_nothing_need_be_nearer_than_half_its_standard_error() -> None:
    gamma, errors = torch.tensor([4.0, 8.0]).double(), torch.tensor([0.4, 0.0]).double()
    drawn = replace(found(), dimensions=Dimensions(gamma, errors, 12.0, 0.5))
    torch.testing.assert_close(
        enough(drawn, N, 1e-3), torch.tensor([SHARE * 0.1, 1e-3, SHARE * 0.5 / (N - 12)]).double()
    )
    assert enough(found(), N, 1e-3).tolist() == [1e-3] * 3
