"""Gaussian: constants, noise precision, targets."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Normal

from lapwing.ground.errors import ConfigError, DataError, ShapeError
from lapwing.likelihoods import Gaussian


def test_nll_includes_every_constant() -> None:
    outputs, targets = torch.randn(2, 4, 3, dtype=torch.float64).unbind(0)
    likelihood = Gaussian((4.0, 1.0, 0.25))
    expected = -Normal(outputs, torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)).log_prob(targets).sum(-1)
    torch.testing.assert_close(likelihood.nll(outputs, targets), expected)


def test_noise_std_and_with_precision() -> None:
    assert Gaussian(4.0).noise_std == 0.5
    assert Gaussian((4.0, 0.25)).noise_std == (0.5, 2.0)
    likelihood = Gaussian(4.0, event_dim=1)
    assert likelihood.with_precision(2.0) == Gaussian(2.0, event_dim=1)
    assert likelihood.with_precision(torch.tensor(2.0)) == Gaussian(2.0, event_dim=1)
    assert likelihood.with_precision(torch.tensor([2.0, 3.0])) == Gaussian((2.0, 3.0), event_dim=1)
    assert likelihood.with_precision([2.0, 3.0]).precision == (2.0, 3.0)


@pytest.mark.parametrize("precision", [0.0, -1.0, float("nan"), float("inf"), (1.0, 0.0), ()])
def test_precision_must_be_positive_and_finite(precision: float | tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="positive finite noise precision"):
        Gaussian(precision)


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
    with pytest.raises(DataError, match="real targets for Gaussian"):
        Gaussian().check(torch.zeros(3, 1), torch.zeros(3, 1, dtype=dtype))
