"""Uncertainty of single weights, and networks without the uncertain ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lapwing.ground.errors import ConfigError, DataError, ShapeError
from lapwing.methods.hessian_free import (
    PerPoint,
    Probed,
    Signs,
    WeightUncertainty,
    prune_uncertain,
    weight_uncertainty,
)
from tests.methods.hessian_free.setting import shared
from tests.posterior_cases import portrait, refused


def found(name: str, fits: Signs | Probed | PerPoint) -> WeightUncertainty:
    setting = shared(name)
    return weight_uncertainty(setting.model, (setting.x, setting.y), setting.likelihood, prior=setting.prior, fits=fits)


@pytest.mark.parametrize("name", ["two-outputs", "classes"])
def test_signs_find_a_row_sum_of_the_covariance(name: str) -> None:
    setting = shared(name)
    expected = torch.linalg.solve(setting.hessian, setting.theta.sign()).abs()
    answer = found(name, Signs())
    torch.testing.assert_close(answer.variances.value[:, 0], expected, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(answer.std, expected.sqrt(), rtol=1e-3, atol=1e-3)


def test_a_fit_a_weight_finds_the_diagonal() -> None:
    setting = shared("two-outputs")
    answer = found("two-outputs", PerPoint(group=10))
    torch.testing.assert_close(answer.std.square(), torch.linalg.inv(setting.hessian).diagonal(), rtol=1e-4, atol=0)
    assert (answer.linearity.checked, answer.linearity.fits) == (6, 26 * 3 + 12)


def test_probes_estimate_the_diagonal() -> None:
    setting = shared("two-outputs")
    answer = found("two-outputs", Probed(6, 20))
    low, high = answer.variances.interval(0.99)
    truth = torch.linalg.inv(setting.hessian).diagonal()[:, None]
    assert float(((low <= truth) & (truth <= high)).double().mean()) > 0.9
    assert float((answer.variances.stderr / truth).median()) < 0.3
    assert list(answer.named()) == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_weights_whose_interval_covers_zero_are_removed() -> None:
    model = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1)).double()
    model[1].requires_grad_(False)
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[0.5, -2.0]]))
        model[0].bias.fill_(-0.1)
    before = portrait(model)
    std = torch.tensor([0.6, 1.5, 0.05], dtype=torch.float64)
    assert [value.tolist() for value in prune_uncertain(model, std)[0].parameters()] == [[[0.0, -2.0]], [-0.1]]
    assert [value.tolist() for value in prune_uncertain(model, std, times=2.0)[0].parameters()] == [[[0.0, 0.0]], [0.0]]
    assert [value.tolist() for value in prune_uncertain(model, std, share=2 / 3)[0].parameters()] == [
        [[0.0, 0.0]],
        [-0.1],
    ]
    assert portrait(model) == before


def test_pruning_refuses_what_is_no_standard_deviation() -> None:
    model = nn.Linear(2, 1)
    with refused(ShapeError, "each of 3 weights"):
        prune_uncertain(model, torch.ones(2))
    with refused(DataError, "not negative"):
        prune_uncertain(model, torch.tensor([1.0, float("nan"), 1.0]))
    with refused(ConfigError, "between 0 and 1"):
        prune_uncertain(model, torch.ones(3), share=1.5)
