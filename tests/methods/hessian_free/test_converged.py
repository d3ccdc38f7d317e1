"""A network of 50 tanh units at its minimum, as in the source's experiments: refits against the exact Hessian."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from lapwing.ground.probes import rademacher
from lapwing.methods.hessian_free import PerPoint, PreTrained, Probed
from lapwing.methods.hessian_free.probed import ProbedCovariance
from tests.methods.hessian_free.setting import Setting, curve


@cache
def wide() -> Setting:
    """151 weights with prior precision 1: every eigenvalue of the Hessian is well above 0."""
    setting = curve(hidden=50, examples=32, alpha=1.0, precision=20.0, descent=300)
    assert float(torch.linalg.eigvalsh(setting.hessian)[0]) > 0.1
    return setting


def worst(found: Tensor, expected: Tensor) -> float:
    """Largest relative error of any entry."""
    return float((found.flatten() / expected.flatten() - 1).abs().max())


def test_twins_at_a_point_find_its_variance() -> None:
    setting = wide()
    points = setting.points[::5]
    truth = setting.blocks(points)
    assert worst(setting.fit(points, fits=PerPoint()).variances(points).value, truth) < 1e-4


def test_one_pre_trained_fit_finds_the_covariance_with_the_mean_output() -> None:
    """Which is not the variance: here they are far apart."""
    setting = wide()
    expected = setting.covariance().mean(1).abs()
    found = setting.fit(fits=PreTrained("mean")).variances(setting.points).value
    assert worst(found, expected) < 1e-2
    assert worst(found, setting.covariance().diagonal()) > 0.5


def test_probed_variances_cover_the_truth_as_often_as_they_say() -> None:
    """By refits for one seed, by the exact covariance for a hundred, which gives the same to a thousandth."""
    setting = wide()
    covariance = setting.covariance()
    truth = covariance.diagonal()[:, None]
    choice = Probed(3, 10)
    once = setting.fit(fits=choice, seed=7).variances(setting.points)
    covered = []
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        omega = rademacher((13, len(truth), 1), like=truth, generator=generator)
        products = (omega[..., 0] @ covariance)[..., None]
        found = ProbedCovariance.of(omega, products, choice.probes, 0.0).variances
        low, high = found.interval(0.95)
        covered.append(((low <= truth) & (truth <= high)).double().mean())
        if seed == 7:
            torch.testing.assert_close(once.value, found.value, rtol=1e-3, atol=1e-3 * float(truth.max()))
            torch.testing.assert_close(once.stderr, found.stderr, rtol=1e-3, atol=1e-3 * float(truth.max()))
    rate = torch.stack(covered)
    assert abs(float(rate.mean()) - 0.95) < 3 * float(rate.std()) / 10 + 0.01
