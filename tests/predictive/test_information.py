"""Mutual information and expected entropies against sums over very many draws, and where they are known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lapwing.predictive import Draws, JointMoments, Moments
from lapwing.predictive.information import (
    expected_entropy,
    expected_label_entropy,
    label_information,
    mutual_information,
)
from tests.posterior_cases import normal


def moments() -> Moments:
    root = normal(4, 3, 3, seed=1)
    return Moments(2 * normal(4, 3), root @ root.mT)


def entropy(probs: Tensor) -> Tensor:
    return -torch.xlogy(probs, probs).sum(-1)


def test_they_are_averages_over_draws() -> None:
    drawn = moments().sample(200_000, generator=torch.Generator().manual_seed(0)).softmax(-1)
    left = entropy(drawn).mean(0)
    torch.testing.assert_close(expected_entropy(moments(), points=4096), left, rtol=0.01, atol=2e-3)
    expected = entropy(drawn.mean(0)) - left
    torch.testing.assert_close(mutual_information(moments(), points=4096), expected, rtol=0.01, atol=2e-3)


def test_of_draws_they_are_exact() -> None:
    values = normal(5, 4, 3)
    probs = values.softmax(-1)
    left = entropy(probs).mean(0)
    torch.testing.assert_close(expected_entropy(Draws(values)), left)
    torch.testing.assert_close(mutual_information(Draws(values)), entropy(probs.mean(0)) - left)


def test_small_uncertainty_is_not_lost_to_rounding() -> None:
    """To second order it is half the trace of ``(diag p - p pᵀ) Σ``."""
    given = moments()
    p = given.mean.softmax(-1)
    fisher = torch.diag_embed(p) - p[..., None] * p[..., None, :]
    for scale in (1e-6, 1e-10):
        small = Moments(given.mean, scale * given.covariance)
        expected = 0.5 * (fisher * small.covariance).sum((-1, -2))
        torch.testing.assert_close(mutual_information(small), expected, rtol=0.02, atol=0.0)
    certain = mutual_information(Moments.certain(given.mean))
    assert float(certain.abs().max()) <= torch.finfo(torch.float64).eps


def test_a_shift_of_all_logits_tells_nothing_and_ignorance_everything() -> None:
    shared = Moments(normal(2, 3), 50 * torch.ones(2, 3, 3).double())
    assert float(mutual_information(shared).abs().max()) < 1e-9
    torch.testing.assert_close(expected_entropy(shared), entropy(shared.mean.softmax(-1)))
    unknown = Moments(torch.zeros(1, 3).double(), 1e8 * torch.eye(3).double()[None])
    assert float(mutual_information(unknown)) == pytest.approx(math.log(3), abs=1e-3)


def test_joint_moments_are_those_of_each_position() -> None:
    given = moments()
    joint = JointMoments(given.mean, torch.block_diag(*given.covariance).view(4, 3, 4, 3))
    torch.testing.assert_close(mutual_information(joint), mutual_information(given))


def test_of_labels_they_are_those_of_two_classes() -> None:
    """A label is a class of two, whose logits differ by its own."""
    one = Moments(normal(4, 1), (0.1 + normal(4, 1, 1, seed=2).square()))
    mean = torch.cat([torch.zeros_like(one.mean), one.mean], -1)
    covariance = torch.zeros(4, 2, 2).double()
    covariance[:, 1, 1] = one.covariance[:, 0, 0]
    two = Moments(mean, covariance)
    information = mutual_information(two, points=4096)
    torch.testing.assert_close(label_information(one)[:, 0], information, rtol=5e-3, atol=1e-4)
    left = expected_entropy(two, points=4096)
    torch.testing.assert_close(expected_label_entropy(one)[:, 0], left, rtol=5e-3, atol=1e-4)
