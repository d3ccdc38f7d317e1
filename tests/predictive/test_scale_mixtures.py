"""Densities and distribution functions of a Gaussian number plus Student-t noise, against scipy's integrals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from lapwing.predictive.scale_mixtures import log_density, log_normaliser, log_one_plus_square, share_below

CASES = [(0.1, 1.0, 1.0), (1.0, 0.3, 2.0), (4.0, 1.0, 1e-4), (4.0, 0.01, 1.0), (30.0, 1.0, 3.0), (1e4, 0.5, 0.2)]
"""Degrees of freedom, scale, and variance of the Gaussian."""

AWAY = torch.tensor([0.0, -0.2, 0.7, 2.0, -5.0, 12.0], dtype=torch.float64)


def integrated(df: float, scale: float, variance: float, away: float, *, share: bool) -> float:
    """``∫ p(y - f) N(f; 0, v) df`` by the midpoint rule where either factor is large, in units that resolve both."""
    inverse = stats.t(df, scale=scale)
    sd = math.sqrt(variance)
    points, weights = np.polynomial.legendre.leggauss(60)
    near = min(scale, sd)
    widths = near * np.concatenate([[0.0], np.geomspace(0.2, 40 * sd / near + 40, 60)])
    edges = np.unique(np.concatenate([-widths, widths, away - widths, away + widths]).clip(-12 * sd, 12 * sd))
    low, high = edges[:-1, None], edges[1:, None]
    f = 0.5 * (high + low) + 0.5 * (high - low) * points
    values = (inverse.cdf if share else inverse.pdf)(away - f) * stats.norm.pdf(f, scale=sd)
    return float((0.5 * (high - low) * weights * values).sum())


@pytest.mark.parametrize(("df", "scale", "variance"), CASES)
def test_they_are_those_of_the_convolution(df: float, scale: float, variance: float) -> None:
    v = torch.full_like(AWAY, variance)
    density = [integrated(df, scale, variance, each, share=False) for each in AWAY.tolist()]
    assert log_density(AWAY, v, df, scale).exp().tolist() == pytest.approx(density, rel=1e-9)
    share = [integrated(df, scale, variance, each, share=True) for each in AWAY.tolist()]
    assert share_below(AWAY, v, df, scale).tolist() == pytest.approx(share, abs=1e-10)


@pytest.mark.parametrize("df", [0.1, 1.0, 4.0, 150.0, 300.0, 1e5])
def test_without_variance_they_are_those_of_t(df: float) -> None:
    """The noise alone, however far out: the integrand has its weight at precisions of 1e-40 there."""
    away = torch.cat([AWAY, torch.tensor([1e3, -1e20, 1e150], dtype=torch.float64)])
    known = stats.t(df, scale=0.7)
    nothing = torch.zeros_like(away)
    found = log_density(away, nothing, df, 0.7).tolist()
    assert found == pytest.approx(known.logpdf(away.numpy()).tolist(), rel=1e-11)
    assert share_below(away, nothing, df, 0.7).tolist() == pytest.approx(known.cdf(away.numpy()).tolist(), abs=1e-12)


def test_of_many_degrees_of_freedom_they_are_gaussian() -> None:
    variance = torch.linspace(0.0, 3.0, 6, dtype=torch.float64)
    known = stats.norm(scale=(variance + 0.49).sqrt().numpy())
    found = log_density(AWAY, variance, 1e9, 0.7)
    torch.testing.assert_close(found, torch.from_numpy(known.logpdf(AWAY.numpy())), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(share_below(AWAY, variance, 1e9, 0.7), torch.from_numpy(known.cdf(AWAY.numpy())))


def test_a_tiny_scale_beside_a_huge_distance() -> None:
    """Their ratio has a square that is no number: the density falls as the fourth power, and v plays no part."""
    away = torch.tensor([1e150], dtype=torch.float64)
    expected = log_normaliser(3.0) + 2 * math.log(3.0) + 3 * math.log(1e-100) - 4 * math.log(1e150)
    for variance in (0.0, 1e6):
        found = log_density(away, torch.full_like(away, variance), 3.0, 1e-100)
        assert float(found) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("df", [0.1, 4.0, 1e3])
def test_from_where_the_noise_alone_counts_nothing_jumps(df: float) -> None:
    away = torch.tensor([0.9999e20, 1.0001e20], dtype=torch.float64) * 1.1
    one, other = log_density(away, torch.full((2,), 0.21, dtype=torch.float64), df, 1.0).tolist()
    assert one - other == pytest.approx((df + 1) * math.log(1.0001 / 0.9999), rel=1e-6)


def test_pieces_give_what_all_at_once_give() -> None:
    away = torch.linspace(-50, 1e4, 37, dtype=torch.float64)
    variance = torch.linspace(0, 4, 37, dtype=torch.float64)
    for function in (log_density, share_below):
        torch.testing.assert_close(function(away, variance, 3.0, 0.1, max_bytes=1), function(away, variance, 3.0, 0.1))


def test_they_can_be_differentiated() -> None:
    away = AWAY.clone().requires_grad_()
    variance = torch.linspace(0.01, 3.0, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, v: log_density(a, v, 3.0, 0.4), (away, variance))
    assert torch.autograd.gradcheck(lambda a, v: share_below(a, v, 3.0, 0.4), (away, variance))
    (slope,) = torch.autograd.grad(share_below(away, variance, 3.0, 0.4).sum(), away)
    torch.testing.assert_close(slope, log_density(away, variance, 3.0, 0.4).exp())


def test_the_normaliser_is_the_density_at_the_centre() -> None:
    for df in (0.1, 1.0, 199.0, 201.0, 1e6):
        assert log_normaliser(df) == pytest.approx(float(stats.t(df).logpdf(0.0)), rel=1e-9)
    assert log_normaliser(1e9) == pytest.approx(-0.5 * math.log(2 * math.pi), rel=1e-8)


def test_logarithms_of_squares_neither_overflow_nor_vanish() -> None:
    values = torch.tensor([1e-15, -0.3, 1.0, 2.5, -1e30], dtype=torch.float32)
    expected = np.log1p((values.double().numpy() / 1.0) ** 2)
    assert log_one_plus_square(values, 1.0).tolist() == pytest.approx(expected.tolist(), rel=1e-6)
