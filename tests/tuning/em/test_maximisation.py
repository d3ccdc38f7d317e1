"""When EM may stop: how far precisions are from where their moves take them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from lapwing.linear.evidence import LogEvidence
from lapwing.linear.log_det_ratio import Spectrum
from lapwing.linear.tangent import Mode
from lapwing.posteriors.effective_dimension import LEAST, Dimensions
from lapwing.tuning.em.expectation import Expected
from lapwing.tuning.em.maximisation import SHARE, moves_of, settled_at
from lapwing.tuning.em.state import State
from lapwing.tuning.hyperparameters import Hyperparameters
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
        settled = settled_at(replace(expected, dimensions=dimensions), observations, 1e-9) / SHARE
        assert float(settled[-1]) == pytest.approx(0.3 / free)
        torch.testing.assert_close(settled[:2], torch.tensor([0.1, 0.2]).double() / dimensions.groups)


def test_only_what_may_move_and_matters_is_waited_for() -> None:
    expected = found()
    moved = expected.state.precisions * torch.tensor([2.0, 0.5]).double()
    scale = expected.state.scale
    there = Hyperparameters(moved, 3 * scale)
    waited = moves_of(expected, there, True)
    assert waited.tolist() == pytest.approx([math.log(2), -math.log(2), math.log(3)])
    assert moves_of(expected, there, False).tolist() == pytest.approx([math.log(2), -math.log(2), 0])
    pruned = replace(expected, dimensions=Dimensions.exact(torch.tensor([LEAST, 5.0]).double()))
    assert moves_of(pruned, Hyperparameters(moved, scale), True).tolist() == pytest.approx([0, -math.log(2), 0])


def test_nothing_need_be_nearer_than_half_its_standard_error() -> None:
    gamma, errors = torch.tensor([4.0, 8.0]).double(), torch.tensor([0.4, 0.0]).double()
    drawn = replace(found(), dimensions=Dimensions(gamma, errors, 12.0, 0.5))
    torch.testing.assert_close(
        settled_at(drawn, N, 1e-3), torch.tensor([SHARE * 0.1, 1e-3, SHARE * 0.5 / (N - 12)]).double()
    )
    assert settled_at(found(), N, 1e-3).tolist() == [1e-3] * 3
