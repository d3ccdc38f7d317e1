"""HeteroscedasticGaussian: a mean and a log variance for each target."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Normal

from lapwing.ground.errors import DataError, ShapeError
from lapwing.likelihoods import Gaussian, HeteroscedasticGaussian

LIKELIHOOD = HeteroscedasticGaussian()


def test_nll_is_the_gaussian_log_probability() -> None:
    outputs = torch.randn(5, 4, dtype=torch.float64)
    targets = torch.randn(5, 2, dtype=torch.float64)
    expected = -Normal(outputs[:, :2], outputs[:, 2:].mul(0.5).exp()).log_prob(targets).sum(-1)
    torch.testing.assert_close(LIKELIHOOD.nll(outputs, targets), expected)


def test_constant_noise_is_the_plain_gaussian() -> None:
    means, targets = torch.randn(2, 5, 2, dtype=torch.float64).unbind(0)
    outputs = torch.cat([means, torch.full_like(means, -1.0)], -1)
    plain = Gaussian(float(torch.tensor(1.0, dtype=torch.float64).exp()))
    torch.testing.assert_close(LIKELIHOOD.nll(outputs, targets), plain.nll(means, targets))
    torch.testing.assert_close(LIKELIHOOD.hessian(outputs)[:, :2, :2], plain.hessian(means))
    torch.testing.assert_close(LIKELIHOOD.mean(outputs), means)


def test_targets_have_half_as_many_numbers() -> None:
    outputs = torch.zeros(3, 2)
    targets = LIKELIHOOD.canonical_targets(outputs, torch.zeros(3))
    assert targets.shape == (3, 1) and LIKELIHOOD.count(targets) == 3
    LIKELIHOOD.check(outputs, targets)
    with pytest.raises(ShapeError, match=r"shape \[3, 1\]\. Got shape \[3, 2\].*two outputs"):
        LIKELIHOOD.check(outputs, torch.zeros(3, 2))
    with pytest.raises(ShapeError, match=r"even number of outputs.*Got outputs of shape \[3, 3\]"):
        LIKELIHOOD.check(torch.zeros(3, 3), torch.zeros(3, 1))
    with pytest.raises(DataError, match="real targets for HeteroscedasticGaussian"):
        LIKELIHOOD.canonical_targets(outputs, torch.zeros(3, dtype=torch.long))
