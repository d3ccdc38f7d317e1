"""The rational quadratic kernel at its limits, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from lapwing.gp import RBF, RationalQuadratic
from lapwing.ground.errors import ConfigError
from tests.checker import unchecked
from tests.posterior_cases import normal, refused


def test_alike_scales_are_a_squared_exponential_kernel() -> None:
    a, b, weight = normal(5, 2), normal(4, 2, seed=1), normal(5, 4, seed=2)
    many, one = RationalQuadratic((0.7, 2.0), 1e9), RBF((0.7, 2.0))
    torch.testing.assert_close(many(a, b), one(a, b), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(many.gradient(a, b, weight)[:2], one.gradient(a, b, weight), rtol=1e-6, atol=1e-8)


def test_far_away_it_falls_as_a_power_of_the_distance() -> None:
    kernel = RationalQuadratic(1.0, 0.75)
    near, far = kernel(torch.tensor([[1e4], [1e5]], dtype=torch.float64), torch.zeros(1, 1).double())[:, 0]
    assert float(near / far) == pytest.approx(10**1.5, rel=1e-6)


def test_several_alphas_are_refused() -> None:
    with unchecked(), refused(ConfigError, "one alpha for all dimensions"):
        RationalQuadratic(1.0, (1.0, 2.0))
