"""Negative binomial counts of uncertain means are mixtures of scipy's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from lapwing.ground.errors import DataError, ShapeError
from lapwing.moments import BasisMoments, Draws, Moments
from lapwing.predictive.distributions import Counts, OverdispersedCounts
from lapwing.predictive.distributions.overdispersed import log_rising
from tests.checker import unchecked
from tests.posterior_cases import refused

DISPERSION = 0.7
CASES = [(0.0, 0.0), (1.3, 0.4), (-2.0, 1.5), (3.0, 0.5), (40.0, 0.01)]
"""Mean and variance of the log mean."""


def counts(cases: list[tuple[float, float]] = CASES, dispersion: float = DISPERSION) -> OverdispersedCounts:
    mean, variance = torch.tensor(cases, dtype=torch.float64).T
    return OverdispersedCounts.of(Moments(mean[:, None], variance[:, None, None]), dispersion)


def mixture(function: Any, mean: float, variance: float) -> float:
    """E of what scipy says given the mean, by the midpoint rule at ten thousand points."""
    z = (np.arange(10_000) + 0.5) / 10_000 * 16 - 8
    r = 1 / DISPERSION
    known = stats.nbinom(r, r / (r + np.exp(mean + math.sqrt(variance) * z)))
    return float((function(known) * stats.norm.pdf(z)).sum() * 16 / 10_000)


def test_mean_and_variance_are_those_of_the_mixture() -> None:
    p = counts(CASES[:4])
    for place, case in enumerate(CASES[:4]):
        mean = mixture(lambda known: known.mean(), *case)
        second = mixture(lambda known: known.var() + known.mean() ** 2, *case)
        assert float(p.mean[place]) == pytest.approx(mean, rel=1e-6)
        assert float(p.variance[place]) == pytest.approx(second - mean**2, rel=1e-6)
    torch.testing.assert_close(p.covariance.diagonal(dim1=-2, dim2=-1), p.variance)


def test_wide_outputs_have_the_variance_of_the_others(generator: torch.Generator) -> None:
    mean = torch.randn(3, 2, generator=generator, dtype=torch.float64)
    variance = torch.rand(3, 2, generator=generator, dtype=torch.float64)
    wide = OverdispersedCounts.of(BasisMoments(mean, variance), DISPERSION)
    whole = OverdispersedCounts.of(Moments(mean, variance.diag_embed()), DISPERSION)
    torch.testing.assert_close(wide.variance, whole.variance)
    torch.testing.assert_close(wide.covariance, whole.covariance)


def test_shares_are_those_of_the_mixture() -> None:
    p = counts(CASES[:4])
    for k in (0.0, 1.0, 7.0):
        found = p.cdf(torch.full_like(p.mean, k))[:, 0].tolist()
        assert found == pytest.approx([mixture(lambda known, k=k: known.cdf(k), *case) for case in CASES[:4]], abs=1e-6)
    assert float(p.cdf(torch.full_like(p.mean, -1.0)).abs().max()) == 0.0


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_ends_are_the_smallest_counts_that_are_likely_enough(level: float) -> None:
    for end, tail in zip(counts().interval(level), ((1 - level) / 2, (1 + level) / 2), strict=True):
        slack = 1e-3 * min(tail, 1 - tail)
        for k, case in zip(end[:4, 0].tolist(), CASES, strict=False):
            assert k == round(k) and mixture(lambda known, k=k: known.cdf(k), *case) >= tail - slack
            assert k == 0 or mixture(lambda known, k=k: known.cdf(k - 1), *case) <= tail + slack
        assert math.isfinite(float(end[4]))


@pytest.mark.parametrize("r", [999.0, 1000.0, 1e5, 1e12])
def test_the_rising_factorial_is_that_of_its_factors(r: float) -> None:
    y = torch.tensor([0.0, 1.0, 40.0, 2000.0], dtype=torch.float64)
    expected = [math.fsum(math.log(r + k) for k in range(int(count))) for count in y.tolist()]
    assert log_rising(y, r).tolist() == pytest.approx(expected, rel=1e-11, abs=1e-11)


@pytest.mark.parametrize("dispersion", [1e-12, 1e-16, 1e-18])
def test_shares_of_hardly_any_dispersion_are_poissons(dispersion: float) -> None:
    rates = torch.tensor([0.1, 3.0, 1e4], dtype=torch.float64)
    y = torch.tensor([0.0, 3.0, 10_100.0], dtype=torch.float64)
    known = OverdispersedCounts.of(Moments.certain(torch.zeros(1, 1)), dispersion)
    expected = stats.poisson.cdf(y, rates).tolist()
    assert known.share_below(y, rates[None])[0].tolist() == pytest.approx(expected, abs=2e-9)


def test_density_is_that_of_the_mixture() -> None:
    p = counts(CASES[:4])
    for y in (0.0, 1.0, 4.0, 300.0):
        exact = [math.log(mixture(lambda known, y=y: known.pmf(y), *case)) for case in CASES[:4]]
        assert p.log_prob(torch.full((4, 1), y).double()).tolist() == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("of", [Counts.of, lambda outputs: OverdispersedCounts.of(outputs, DISPERSION)])
@pytest.mark.parametrize("outputs", [1, 3])
def test_the_density_of_a_count_does_not_depend_on_what_it_is_asked_with(
    of: Any, outputs: int, generator: torch.Generator
) -> None:
    mean = torch.randn(9, outputs, generator=generator, dtype=torch.float64)
    root = torch.randn(9, outputs, outputs, generator=generator, dtype=torch.float64)
    covariance = 0.1 * root @ root.mT
    y = torch.randint(0, 9, (9, outputs), generator=generator).double()
    whole = of(Moments(mean, covariance)).log_prob(y)
    parts = [of(Moments(mean[k::2], covariance[k::2])).log_prob(y[k::2]) for k in range(2)]
    torch.testing.assert_close(parts[0], whole[0::2], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(parts[1], whole[1::2], rtol=1e-12, atol=1e-12)
    wide = BasisMoments(mean, covariance.diagonal(dim1=-2, dim2=-1))
    alone = Moments(mean, wide.variance.diag_embed())
    torch.testing.assert_close(of(wide).log_prob(y), of(alone).log_prob(y), rtol=0.05, atol=0.05)


def test_the_density_of_several_counts_is_that_of_each_where_they_have_nothing_in_common(
    generator: torch.Generator,
) -> None:
    mean = torch.randn(7, 2, generator=generator, dtype=torch.float64)
    variance = torch.rand(7, 2, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 5, (7, 2), generator=generator).double()
    together = OverdispersedCounts.of(Moments(mean, variance.diag_embed()), DISPERSION).log_prob(y)
    each = OverdispersedCounts.of(Moments(mean.view(14, 1), variance.view(14, 1, 1)), DISPERSION)
    torch.testing.assert_close(together, each.log_prob(y.view(14, 1)).view(7, 2).sum(1), rtol=0.0, atol=0.005)


def test_the_density_over_draws_is_the_mean_of_theirs(generator: torch.Generator) -> None:
    draws = torch.randn(30, 4, 2, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 5, (4, 2), generator=generator).double()
    each = OverdispersedCounts.of(Draws(draws), DISPERSION)
    expected = each.log_prob_given(y, draws).sum(-1).exp().mean(0).log()
    torch.testing.assert_close(each.log_prob(y), expected)


def test_draws_have_its_mean_and_variance(generator: torch.Generator) -> None:
    p = counts([(0.4, 0.3), (1.0, 0.1)])
    k = 100_000
    draws = p.sample(k, generator=generator)
    assert bool(((draws.mean(0) - p.mean).abs() < 5 * (p.variance / k).sqrt()).all())
    torch.testing.assert_close(draws.var(0), p.variance, rtol=0.1, atol=0.0)


def test_what_is_inside_an_interval_is_told_without_it(generator: torch.Generator) -> None:
    f = torch.randn(20, 2, generator=generator, dtype=torch.float64)
    drawn = Draws(f + 0.3 * torch.randn(50, 20, 2, generator=generator, dtype=torch.float64))
    y = torch.randint(0, 9, (20, 2), generator=generator).double()
    for p in (OverdispersedCounts.of(drawn, DISPERSION), Counts.of(drawn), Counts.of(drawn.marginal())):
        low, high = p.interval(0.8)
        assert torch.equal(p.inside(y, 0.8), ((low <= y) & (y <= high)).double())


@pytest.mark.parametrize("of", [Counts.of, lambda outputs: OverdispersedCounts.of(outputs, DISPERSION)])
@pytest.mark.parametrize("bad", [-1.0, 0.5, math.nan, math.inf])
@pytest.mark.parametrize("outputs", [1, 2])
def test_targets_that_are_no_counts_have_no_density(of: Any, bad: float, outputs: int) -> None:
    p = of(Moments(torch.zeros(3, outputs), torch.eye(outputs).expand(3, -1, -1)))
    y = torch.ones(3, outputs)
    y[1, 0] = bad
    with refused(DataError, "counts 0, 1, 2"):
        p.log_prob(y)
    with unchecked(), refused(ShapeError, "one target an output"):
        p.log_prob(y[:2])
