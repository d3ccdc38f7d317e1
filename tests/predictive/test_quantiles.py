"""Intervals of counts are quantiles of the mixture of Poisson distributions that they are."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import lapwing as lw
from lapwing.ground.errors import ConfigError
from lapwing.predictive.distributions import Counts
from lapwing.predictive.outputs import Draws, Moments
from lapwing.predictive.quantiles import count_quantile
from tests.posterior_cases import mlp, normal, refused

CASES = [(0.0, 0.0), (1.3, 0.4), (-2.0, 1.5), (5.0, 0.3), (3.0, 2.0), (9.0, 0.01)]
"""Mean and variance of the log rate."""


def counts(cases: list[tuple[float, float]] = CASES) -> Counts:
    mean, variance = torch.tensor(cases, dtype=torch.float64).T
    return Counts.of(Moments(mean[:, None], variance[:, None, None]))


def share_below(k: float, mean: float, variance: float) -> float:
    """P(y ≤ k), by the midpoint rule at ten thousand points."""
    z = (np.arange(10_000) + 0.5) / 10_000 * 16 - 8
    shares = stats.poisson.cdf(k, np.exp(mean + math.sqrt(variance) * z))
    return float((shares * stats.norm.pdf(z)).sum() * 16 / 10_000)


@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_ends_are_the_smallest_counts_that_are_likely_enough(level: float) -> None:
    """To a thousandth of the tail, by which quadratures may differ beside a step."""
    for end, tail in zip(counts().interval(level), ((1 - level) / 2, (1 + level) / 2), strict=True):
        slack = 1e-3 * min(tail, 1 - tail)
        for k, case in zip(end[:, 0].tolist(), CASES, strict=True):
            assert k == round(k) and share_below(k, *case) >= tail - slack
            assert k == 0 or share_below(k - 1, *case) <= tail + slack


@pytest.mark.parametrize("log_rate", [40.0, 300.0])
def test_counts_beyond_all_whole_numbers_have_the_interval_of_their_rate(log_rate: float) -> None:
    many = counts([(log_rate, 0.01)])
    for found, expected in zip(many.interval(0.9), many.interval(0.9, noise=False), strict=True):
        torch.testing.assert_close(found, expected, rtol=0.1 / 64, atol=0.0)


def test_draws_and_pieces_agree_with_sampled_counts(generator: torch.Generator) -> None:
    values = 1.0 + 0.5 * torch.randn(50, 3, 2, generator=generator, dtype=torch.float64)
    drawn = Counts.of(Draws(values))
    low, high = drawn.interval(0.9)
    piecewise = count_quantile(Draws(values), drawn.mean, drawn.std, 0.95, max_bytes=8 * 50 * 2)
    assert torch.equal(piecewise, high)
    shares = partial(stats.poisson.cdf, mu=values.exp().numpy())
    for end, tail in ((low, 0.05), (high, 0.95)):
        assert end.shape == (3, 2)
        assert np.all(shares(end.numpy()).mean(0) >= tail) and np.all(shares(end.numpy() - 1).mean(0) < tail)


def test_rates_have_the_quantiles_of_a_log_normal_number(generator: torch.Generator) -> None:
    low, high = counts().interval(0.9, noise=False)
    for found, tail in ((low, 0.05), (high, 0.95)):
        expected = [math.exp(stats.norm.ppf(tail, m, math.sqrt(v))) if v else math.exp(m) for m, v in CASES]
        assert found[:, 0].tolist() == pytest.approx(expected, rel=1e-9)
    values = torch.randn(101, 3, 2, generator=generator, dtype=torch.float64)
    low, _ = Counts.of(Draws(values)).interval(0.9, noise=False)
    torch.testing.assert_close(low, values.sort(0).values[5].exp(), rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("link", ["probit", "mc"])
def test_a_posterior_of_counts_has_intervals(link: Any) -> None:
    x, y = normal(9, 3), torch.arange(9.0)[:, None]
    prediction = lw.Laplace(lw.Poisson(), structure=lw.Full()).fit(mlp(1), (x, y)).predict(x, link=link)
    low, high = prediction.interval(0.5)
    assert low.shape == (9, 1) and bool((low <= high).all()) and bool((low >= 0).all())
    with refused(ConfigError, "level between 0 and 1"):
        prediction.interval(1.0)
