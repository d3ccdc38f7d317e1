"""Conformal intervals cover as they promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lapwing.baselines import ConformalIntervals, Ensemble, PlainNetwork, Task
from lapwing.ground.errors import UnsupportedError
from lapwing.likelihoods import Bernoulli, Gaussian, HeteroscedasticGaussian, StudentT
from tests.posterior_cases import normal, refused

NOISY = PlainNetwork(nn.Identity(), HeteroscedasticGaussian())


def made(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Means and log variances of two outputs each, and targets whose noise is larger and not normal."""
    x = normal(n, 4, seed=seed)
    noise = normal(n, 2, seed=seed + 50_000).pow(3)
    return x, x[:, :2] + (0.5 * x[:, 2:]).exp() * noise


@pytest.mark.parametrize("scaled", [True, False])
def test_coverage_is_within_the_binomial_error_over_two_hundred_splits(scaled: bool) -> None:
    recipe = ConformalIntervals(scaled=scaled, level=0.8)
    n, m, splits = 60, 100, 200
    shares = [recipe.on(NOISY, made(n, split)).coverage(made(m, 1000 + split)).share for split in range(splits)]
    promised = math.ceil((n + 1) * 0.8) / (n + 1)
    spread = (promised * (1 - promised) * (1 / m + 1 / (n + 2)) / 2) ** 0.5  # of two outputs that are independent
    assert abs(float(np.mean(shares)) - promised) < 3 * spread / splits**0.5


def test_scaled_intervals_are_as_wide_as_the_prediction_is_unsure() -> None:
    data = made(200, 0)
    fitted = ConformalIntervals().on(NOISY, data)
    low, high = fitted.interval(data[0])
    std = NOISY.predict(data[0]).std
    torch.testing.assert_close(high - low, 2 * fitted.thresholds * std)
    torch.testing.assert_close(low + high, 2 * data[0][:, :2])
    low, high = ConformalIntervals(scaled=False).on(NOISY, data).interval(data[0])
    assert float((high - low).std(0).max()) < 1e-9


def test_they_go_on_top_of_other_baselines() -> None:
    x = normal(100, 3)
    y = x.sum(1, keepdim=True) + normal(100, 1, seed=1)
    models = [nn.Linear(3, 1).double() for _ in range(3)]
    ensemble = Ensemble(models, likelihood=Gaussian())
    task = Task(models[0], (x[:50], y[:50]), (x[50:], y[50:]), likelihood=Gaussian())
    found = ConformalIntervals(ensemble).fit(task)
    assert found.predictor is ensemble
    assert found.coverage((x[50:], y[50:])).share >= 0.9


def test_infinite_standard_deviations_are_no_unit() -> None:
    plain = PlainNetwork(nn.Identity(), StudentT(df=2.0))
    data = normal(40, 2), normal(40, 2, seed=1)
    with refused(UnsupportedError, "Try ConformalIntervals(scaled=False)"):
        ConformalIntervals().on(plain, data)
    low, high = ConformalIntervals(scaled=False).on(plain, data).interval(data[0])
    assert bool((low < high).all() and high.isfinite().all())


def test_probabilities_have_no_intervals() -> None:
    with refused(UnsupportedError, "predictions with a mean and a standard deviation"):
        ConformalIntervals().on(PlainNetwork(nn.Identity(), Bernoulli()), (normal(40, 2), torch.ones(40, 2)))
