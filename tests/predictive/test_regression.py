"""Regression and Counts: noise, intervals, draws."""

from __future__ import annotations

import pytest
import torch

from lapwing.ground.errors import ConfigError
from lapwing.predictive import Counts, JointMoments, Moments, Regression


def regression(n: int = 3) -> Regression:
    factor = torch.randn(n, 2, 2, dtype=torch.float64)
    moments = Moments(torch.randn(n, 2, dtype=torch.float64), factor @ factor.mT)
    return Regression(moments, torch.tensor([0.5, 2.0], dtype=torch.float64))


def test_variance_and_covariance_add_the_noise() -> None:
    p = regression()
    torch.testing.assert_close(p.variance, p.outputs.variance + p.noise)
    torch.testing.assert_close(p.std.square(), p.variance)
    torch.testing.assert_close(p.covariance, p.outputs.covariance + torch.diag(p.noise))
    torch.testing.assert_close(p.mean, p.outputs.mean)


def test_joint_covariance_adds_the_noise_to_each_target_alone() -> None:
    joint = JointMoments(torch.zeros(2, 2), torch.ones(2, 2, 2, 2))
    p = Regression(joint, torch.tensor([1.0, 3.0]))
    expected = torch.ones(4, 4) + torch.diag(torch.tensor([1.0, 3.0, 1.0, 3.0]))
    torch.testing.assert_close(p.covariance.reshape(4, 4), expected)


@pytest.mark.parametrize("noise", [True, False])
def test_draws_have_the_moments_and_fall_in_the_interval(noise: bool, generator: torch.Generator) -> None:
    p = regression()
    k = 8000
    draws = p.sample(k, noise=noise, generator=generator)
    variance = p.variance if noise else p.outputs.variance
    assert bool(((draws.mean(0) - p.mean).abs() < 5 * (variance / k).sqrt()).all())
    assert bool(((draws.var(0) / variance - 1).abs() < 5 * (2 / k) ** 0.5).all())
    low, high = p.interval(0.9, noise=noise)
    inside = ((draws > low) & (draws < high)).double().mean(0)
    assert bool(((inside - 0.9).abs() < 5 * (0.09 / k) ** 0.5).all())


def test_the_95_percent_interval_is_1_96_standard_deviations() -> None:
    p = regression()
    low, high = p.interval()
    torch.testing.assert_close((high - low) / p.std, torch.full_like(low, 2 * 1.959963984540054))
    torch.testing.assert_close(0.5 * (low + high), p.mean)


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0, -0.5])
def test_a_level_is_a_probability(level: float) -> None:
    with pytest.raises(ConfigError, match=f"level between 0 and 1. Got level={level}"):
        regression().interval(level)


@pytest.mark.parametrize("joint", [False, True])
def test_counts_add_the_variance_of_counting(joint: bool) -> None:
    mean = torch.tensor([[1.0, 2.0]])
    covariance = torch.tensor([[[0.5, 0.1], [0.1, 0.2]]])
    log_rates: Moments | JointMoments = Moments.certain(torch.zeros(1, 2))
    if joint:
        covariance = covariance.reshape(1, 2, 1, 2)
        log_rates = JointMoments(torch.zeros(1, 2), torch.zeros(1, 2, 1, 2))
    p = Counts(log_rates, mean, covariance)
    torch.testing.assert_close(p.variance, torch.tensor([[1.5, 2.2]]))
    torch.testing.assert_close(p.std, p.variance.sqrt())
    expected = torch.tensor([[1.5, 0.1], [0.1, 2.2]])
    torch.testing.assert_close(p.covariance.reshape(2, 2), expected)


def test_count_draws_are_counts_and_rates_are_rates(generator: torch.Generator) -> None:
    moments = Moments(torch.zeros(2, 1), 0.1 * torch.ones(2, 1, 1))
    p = Counts(moments, torch.ones(2, 1), torch.zeros(2, 1, 1))
    counts = p.sample(50, generator=generator)
    assert counts.shape == (50, 2, 1) and bool((counts == counts.round()).all())
    rates = p.sample(50, noise=False, generator=generator)
    assert bool((rates > 0).all()) and not bool((rates == rates.round()).all())
    assert p.sample(3).dtype == torch.float32
