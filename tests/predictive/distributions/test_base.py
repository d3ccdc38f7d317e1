"""What predictive distributions say of labels, real targets and counts."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from lapwing.ground.errors import ConfigError, NumericalError
from lapwing.predictive import (
    BasisMoments,
    Classification,
    Counts,
    Draws,
    JointMoments,
    Moments,
    MultiLabel,
    Regression,
)

PROBS = torch.tensor([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]], dtype=torch.float64)
LOGITS = Moments.certain(torch.zeros(2, 3, dtype=torch.float64))


def test_labels_confidence_and_entropy() -> None:
    p = Classification(LOGITS, PROBS)
    assert p.labels.tolist() == [0, 1]
    assert p.confidence.tolist() == [0.5, 1.0]
    torch.testing.assert_close(p.entropy, torch.tensor([1.5 * math.log(2), 0.0], dtype=torch.float64))


def test_covariance_is_that_of_the_one_hot_label() -> None:
    covariance = Classification(LOGITS, PROBS).covariance
    onehot = torch.eye(3, dtype=torch.float64)
    expected = torch.einsum("k,ki,kj->ij", PROBS[0], onehot - PROBS[0], onehot - PROBS[0])
    torch.testing.assert_close(covariance[0], expected)
    assert float(covariance[1].abs().sum()) == 0.0


def test_samples_are_softmax_of_drawn_logits() -> None:
    logits = Moments(torch.zeros(2, 3), torch.eye(3).expand(2, 3, 3))
    p = Classification(logits, PROBS.float())
    drawn = p.sample(5, generator=torch.Generator().manual_seed(2))
    expected = torch.softmax(logits.sample(5, generator=torch.Generator().manual_seed(2)), -1)
    assert torch.equal(drawn, expected)


def test_samples_of_joint_logits_are_coherent_over_the_batch() -> None:
    root = torch.tensor([1.0, 0.0, 1.0, 0.0])
    joint = JointMoments(torch.zeros(2, 2), torch.outer(root, root).reshape(2, 2, 2, 2))
    drawn = Classification(joint, torch.full((2, 2), 0.5)).sample(8)
    torch.testing.assert_close(drawn[:, 0], drawn[:, 1])
    values = torch.randn(4, 2, 2)
    taken = Classification(Draws(values), torch.full((2, 2), 0.5)).sample(4)
    torch.testing.assert_close(taken.sum(0), torch.softmax(values, -1).sum(0))


def test_multilabel_reads_each_label_by_itself() -> None:
    probs = torch.tensor([[0.1, 0.9, 1.0]], dtype=torch.float64)
    p = MultiLabel(Moments.certain(torch.zeros(1, 3, dtype=torch.float64)), probs)
    assert p.labels.tolist() == [[0, 1, 1]]
    torch.testing.assert_close(p.confidence, torch.tensor([[0.9, 0.9, 1.0]], dtype=torch.float64))
    torch.testing.assert_close(p.variance, probs * (1 - probs))
    nats = -0.1 * math.log(0.1) - 0.9 * math.log(0.9)
    torch.testing.assert_close(p.entropy, torch.tensor([[nats, nats, 0.0]], dtype=torch.float64))
    torch.testing.assert_close(p.sample(2), torch.full((2, 1, 3), 0.5, dtype=torch.float64))


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
    p = Counts(log_rates, replace(log_rates, mean=mean, covariance=covariance, factor=None))
    torch.testing.assert_close(p.variance, torch.tensor([[1.5, 2.2]]))
    torch.testing.assert_close(p.std, p.variance.sqrt())
    expected = torch.tensor([[1.5, 0.1], [0.1, 2.2]])
    torch.testing.assert_close(p.covariance.reshape(2, 2), expected)


def test_count_draws_are_counts_and_rates_are_rates(generator: torch.Generator) -> None:
    moments = Moments(torch.zeros(2, 1), 0.1 * torch.ones(2, 1, 1))
    p = Counts(moments, Moments.certain(torch.ones(2, 1)))
    counts = p.sample(50, generator=generator)
    assert counts.shape == (50, 2, 1) and bool((counts == counts.round()).all())
    rates = p.sample(50, noise=False, generator=generator)
    assert bool((rates > 0).all()) and not bool((rates == rates.round()).all())
    assert p.sample(3).dtype == torch.float32


def test_counts_that_overflow_name_the_exponent_with_its_variance() -> None:
    """Of a log rate N(m, v) the variance of the rate is of the order exp(2 (m + v))."""
    moments = Moments(torch.tensor([[20.0]]).double(), torch.tensor([[[400.0]]]).double())
    with pytest.raises(NumericalError, match=r"variances of rates exp f\. Got an exponent of 840"):
        Counts.of(moments)
    wide = BasisMoments(moments.mean, moments.variance)
    with pytest.raises(NumericalError, match="an exponent of 840"):
        Counts.of(wide)
