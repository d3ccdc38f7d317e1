"""Gaussian noise of one size, and of a size that depends on the input: constants, noise precision, targets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import Normal

from lapwing.ground.errors import ConfigError, DataError, ShapeError
from lapwing.likelihoods import Gaussian, HeteroscedasticGaussian, Poisson
from tests.checker import unchecked


def test_nll_includes_every_constant() -> None:
    outputs, targets = torch.randn(2, 4, 3, dtype=torch.float64).unbind(0)
    likelihood = Gaussian((4.0, 1.0, 0.25))
    expected = -Normal(outputs, torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)).log_prob(targets).sum(-1)
    torch.testing.assert_close(likelihood.nll(outputs, targets), expected)


def test_noise_std() -> None:
    assert Gaussian(4.0).noise_std == 0.5
    assert Gaussian((4.0, 0.25)).noise_std == (0.5, 2.0)


@pytest.mark.parametrize("precision", [0.0, -1.0, float("nan"), float("inf"), (1.0, 0.0), (), None, "12"])
def test_precision_must_be_positive_and_finite(precision: Any) -> None:
    with unchecked(), pytest.raises(ConfigError, match="positive finite noise precision"):
        Gaussian(precision)


def test_precisions_may_be_arrays() -> None:
    numbers: list[Any] = [torch.tensor([4.0, 0.25]), np.array([4.0, 0.25]), [4.0, 0.25]]
    with unchecked():
        assert all(Gaussian(each) == Gaussian((4.0, 0.25)) for each in numbers)


def test_one_precision_an_output_needs_that_many_outputs() -> None:
    with pytest.raises(ShapeError, match=r"2 outputs.*Got outputs of shape \[4, 3\]"):
        Gaussian((1.0, 2.0)).check(torch.zeros(4, 3), torch.zeros(4, 3))


def test_targets_without_the_output_axis_are_accepted_for_one_output() -> None:
    outputs = torch.zeros(3, 1)
    targets = Gaussian().canonical_targets(outputs, torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    assert targets.tolist() == [[1.0], [2.0], [3.0]] and targets.dtype == torch.float32
    Gaussian().check(outputs, targets)
    assert Gaussian().count(targets) == 3
    with pytest.raises(ShapeError, match=r"targets of shape \[3, 2\]\. Got shape \[3\]"):
        Gaussian().canonical_targets(torch.zeros(3, 2), torch.zeros(3))


def test_channels_first_targets_follow_their_outputs() -> None:
    likelihood = Gaussian(event_dim=2, class_dim=1)
    raw = torch.randn(2, 3, 4, 5)
    outputs = likelihood.canonical(raw)
    assert torch.equal(likelihood.canonical_targets(outputs, raw), outputs)
    assert likelihood.nll(outputs, outputs).shape == (2, 4, 5)


@pytest.mark.parametrize("dtype", [torch.long, torch.bool])
def test_integer_targets_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(DataError, match=r"real targets for Gaussian.*Categorical\(\) for class labels"):
        Gaussian().canonical_targets(torch.zeros(3, 1), torch.zeros(3, dtype=dtype))


def test_complex_targets_are_refused() -> None:
    with pytest.raises(DataError, match=r"real targets for Gaussian. Got targets of type torch.complex64"):
        Gaussian().canonical_targets(torch.zeros(3, 1), torch.zeros(3, 1, dtype=torch.complex64))


def test_a_factor_of_the_noise_is_found_again() -> None:
    for start in (Gaussian(4.0, weight=3.0), Gaussian((4.0, 0.25))):
        louder = start.scaled(0.3)
        assert louder.noise == pytest.approx(1.2) and louder.noise_over(start) == pytest.approx(0.3)
        assert louder.weight == start.weight
    assert Gaussian((2.0, 2.0)).noise_over(Gaussian(4.0)) == 0.5
    assert Gaussian((2.0, 3.0)).noise_over(Gaussian(1.0)) is None
    assert Gaussian(2.0, event_dim=1).noise_over(Gaussian(1.0)) is None
    assert Poisson().scaled(0.3).noise_over(Poisson()) == 1.0 and Poisson().noise_over(Gaussian()) is None


def test_nll_is_the_gaussian_log_probability() -> None:
    outputs = torch.randn(5, 4, dtype=torch.float64)
    targets = torch.randn(5, 2, dtype=torch.float64)
    expected = -Normal(outputs[:, :2], outputs[:, 2:].mul(0.5).exp()).log_prob(targets).sum(-1)
    torch.testing.assert_close(HeteroscedasticGaussian().nll(outputs, targets), expected)


def test_constant_noise_is_the_plain_gaussian() -> None:
    means, targets = torch.randn(2, 5, 2, dtype=torch.float64).unbind(0)
    outputs = torch.cat([means, torch.full_like(means, -1.0)], -1)
    plain = Gaussian(float(torch.tensor(1.0, dtype=torch.float64).exp()))
    torch.testing.assert_close(HeteroscedasticGaussian().nll(outputs, targets), plain.nll(means, targets))
    torch.testing.assert_close(HeteroscedasticGaussian().hessian(outputs)[:, :2, :2], plain.hessian(means))
    torch.testing.assert_close(HeteroscedasticGaussian().mean(outputs), means)


def test_precisions_that_overflow_are_refused() -> None:
    HeteroscedasticGaussian().check(torch.tensor([[0.0, -88.0]]), torch.zeros(1, 1))
    with pytest.raises(DataError, match=r"log precisions below 89.*Got a log precision of 90.*bounded below"):
        HeteroscedasticGaussian().check(torch.tensor([[0.0, -90.0]]), torch.zeros(1, 1))
    HeteroscedasticGaussian().check(torch.tensor([[0.0, -90.0]]).double(), torch.zeros(1, 1).double())


def test_targets_have_half_as_many_numbers() -> None:
    outputs = torch.zeros(3, 2)
    targets = HeteroscedasticGaussian().canonical_targets(outputs, torch.zeros(3))
    assert targets.shape == (3, 1) and HeteroscedasticGaussian().count(targets) == 3
    HeteroscedasticGaussian().check(outputs, targets)
    with pytest.raises(ShapeError, match=r"shape \[3, 1\]\. Got shape \[3, 2\].*two outputs"):
        HeteroscedasticGaussian().canonical_targets(outputs, torch.zeros(3, 2))
    with pytest.raises(ShapeError, match=r"even number of outputs.*Got outputs of shape \[3, 3\]"):
        HeteroscedasticGaussian().canonical_targets(torch.zeros(3, 3), torch.zeros(3, 1))
    with pytest.raises(DataError, match="real targets for HeteroscedasticGaussian"):
        HeteroscedasticGaussian().canonical_targets(outputs, torch.zeros(3, dtype=torch.long))
