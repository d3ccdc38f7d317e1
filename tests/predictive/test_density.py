"""log_joint: exact where it can be, otherwise within its standard error."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import MultivariateNormal

from lapwing.errors import ConfigError, NumericalError
from lapwing.likelihoods import Categorical, Gaussian
from lapwing.predictive import Draws, JointMoments, log_joint, probit_binary
from lapwing.predictive.moments import Moments


def random_joint(n: int = 3, c: int = 2) -> JointMoments:
    factor = 0.7 * torch.randn(n * c, 2, dtype=torch.float64)
    return JointMoments(torch.randn(n, c, dtype=torch.float64), (factor @ factor.mT).reshape(n, c, n, c))


def test_gaussian_is_the_multivariate_normal_density() -> None:
    joint, likelihood = random_joint(), Gaussian((2.0, 4.0))
    targets = torch.randn(3, 2, dtype=torch.float64)
    noise = torch.tensor([0.5, 0.25], dtype=torch.float64).repeat(3)
    normal = MultivariateNormal(joint.mean.flatten(), joint.covariance.reshape(6, 6) + torch.diag(noise))
    estimate = log_joint(likelihood, joint, targets)
    assert estimate.value == pytest.approx(float(normal.log_prob(targets.flatten())), rel=1e-12)
    assert (estimate.stderr, estimate.samples) == (0.0, 0)


def test_draws_agree_with_the_closed_form_within_their_standard_error() -> None:
    joint, likelihood = random_joint(), Gaussian(1.0)
    targets = torch.randn(3, 2, dtype=torch.float64)
    exact = log_joint(likelihood, joint, targets).value
    draws = Draws(joint.sample(20_000, generator=torch.Generator().manual_seed(0)))
    estimate = log_joint(likelihood, draws, targets)
    assert 0 < estimate.stderr < 0.05 and estimate.samples == 20_000
    assert abs(estimate.value - exact) < 5 * estimate.stderr


def test_certain_logits_give_the_sum_of_log_probabilities() -> None:
    joint = JointMoments(torch.randn(4, 3), torch.zeros(4, 3, 4, 3))
    targets = torch.tensor([0, 2, -100, 1])
    estimate = log_joint(Categorical(), joint, targets, samples=8)
    assert estimate.value == pytest.approx(-float(Categorical().nll(joint.mean, targets).sum()), rel=1e-6)
    assert estimate.stderr == pytest.approx(0.0, abs=1e-6)


def test_shared_uncertainty_makes_equal_answers_more_likely_than_separate_uncertainty() -> None:
    root = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64) * 3
    joint = JointMoments(torch.zeros(2, 2, dtype=torch.float64), torch.outer(root, root).reshape(2, 2, 2, 2))
    equal = log_joint(Categorical(), joint, torch.tensor([0, 0]), generator=torch.Generator().manual_seed(0))
    unequal = log_joint(Categorical(), joint, torch.tensor([0, 1]), generator=torch.Generator().manual_seed(0))
    half = float(probit_binary(Moments.certain(torch.zeros(1, 1, dtype=torch.float64)))) ** 2
    assert equal.value > torch.tensor(half).log() > unequal.value


def test_bad_requests_are_refused() -> None:
    joint = random_joint()
    with pytest.raises(ConfigError, match="at least 2 samples"):
        log_joint(Categorical(), joint, torch.zeros(3, dtype=torch.long), samples=1)
    indefinite = JointMoments(torch.zeros(2, 1), -9 * torch.eye(2).reshape(2, 1, 2, 1))
    with pytest.raises(NumericalError, match=r"fails to factorise at row 1 of 2"):
        log_joint(Gaussian(), indefinite, torch.zeros(2, 1))


def test_a_single_draw_has_an_unknown_error() -> None:
    estimate = log_joint(Gaussian(), Draws(torch.zeros(1, 2, 1)), torch.zeros(2, 1))
    assert estimate.stderr == float("inf") and estimate.samples == 1
