"""Densities of counts against the trapezoid rule at a hundred thousand points."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lapwing.moments import Moments
from lapwing.predictive.count_densities import log_density
from lapwing.predictive.distributions import Counts, OverdispersedCounts

CASES = [
    (0.0, 0.0, 0.0),
    (0.0, 0.0, 1e-12),
    (0.0, -3.0, 100.0),
    (0.0, 20.0, 4.0),
    (1.0, 0.0, 400.0),
    (7.0, 2.0, 0.3),
    (1e4, 0.0, 1.0),
    (1e6, 14.0, 9.0),
    (3.0, 6.0, 0.04),
    (5.0, 300.0, 1e4),
]
"""A count, mean and variance of its log rate."""


CERTAIN = Moments.certain(torch.zeros(1, 1))
CERTAIN_COUNTS = Counts.of(CERTAIN)
SPREAD_OUT_COUNTS = OverdispersedCounts.of(CERTAIN, 0.7)


def poisson(counts: Tensor, log_rates: Tensor) -> Tensor:
    return CERTAIN_COUNTS.log_prob_given(counts, log_rates)


def spread_out(counts: Tensor, log_rates: Tensor) -> Tensor:
    return SPREAD_OUT_COUNTS.log_prob_given(counts, log_rates)


@pytest.mark.parametrize("law", [poisson, spread_out])
@pytest.mark.parametrize("case", CASES)
def test_is_the_integral(law: Any, case: tuple[float, float, float]) -> None:
    y, mean, variance = (torch.tensor([value], dtype=torch.float64) for value in case)
    z = torch.linspace(-30.0, 30.0, 400_001, dtype=torch.float64)
    values = law(y, mean + variance.sqrt() * z[:, None])[:, 0] - 0.5 * z.square()
    expected = float(torch.logsumexp(values, 0)) + math.log(60 / 400_000 / math.sqrt(2 * math.pi))
    assert float(log_density(y, mean, variance, law)) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("law", [poisson, spread_out])
def test_counts_do_not_depend_on_each_other_nor_on_the_pieces(law: Any) -> None:
    y, mean, variance = torch.tensor(CASES, dtype=torch.float64).T
    whole = log_density(y, mean, variance, law)
    torch.testing.assert_close(log_density(y, mean, variance, law, max_bytes=1), whole, rtol=1e-13, atol=0.0)
    order = torch.tensor([4, 0, 7])
    torch.testing.assert_close(
        log_density(y[order], mean[order], variance[order], law), whole[order], rtol=1e-13, atol=0.0
    )


def test_has_the_derivatives_of_the_integral() -> None:
    """``∂ E P / ∂v = ½ ∂² E P / ∂m²``, the heat equation."""
    y = torch.tensor([3.0], dtype=torch.float64)

    def density(mean: Tensor, variance: Tensor) -> Tensor:
        return log_density(y, mean, variance, spread_out).exp().sum()

    at = (torch.tensor([0.4], dtype=torch.float64), torch.tensor([0.8], dtype=torch.float64))
    of_variance = torch.func.grad(density, 1)(*at)
    second = torch.func.grad(lambda mean: torch.func.grad(density)(mean, at[1]).sum())(at[0])
    torch.testing.assert_close(of_variance, 0.5 * second, rtol=1e-6, atol=0.0)


def test_a_rate_too_large_for_its_count_has_no_probability() -> None:
    y, mean = torch.zeros(1).double(), torch.full((1,), 800.0).double()
    assert float(log_density(y, mean, torch.zeros(1).double(), poisson)) == -torch.inf
