from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from lapwing.evaluation.metrics import crps, gaussian_nll, picp, rmse
from lapwing.ground.errors import ConfigError, DataError, ShapeError
from tests.checker import unchecked
from tests.posterior_cases import refused


@pytest.fixture
def predictions(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    mean, targets = torch.randn(2, 40, 3, generator=generator, dtype=torch.float64)
    return mean, 0.2 + torch.rand(40, 3, generator=generator, dtype=torch.float64), targets


def test_scores_equal_their_definitions(predictions: tuple[Tensor, Tensor, Tensor]) -> None:
    mean, std, targets = predictions
    m, s, y = (tensor.numpy() for tensor in predictions)
    assert rmse(mean, targets) == pytest.approx(np.sqrt(np.mean((m - y) ** 2)), rel=1e-14)
    assert gaussian_nll(mean, std**2, targets) == pytest.approx(-stats.norm(m, s).logpdf(y).mean(), rel=1e-13)
    w = (y - m) / s
    closed = s * (w * (2 * stats.norm.cdf(w) - 1) + 2 * stats.norm.pdf(w) - 1 / np.sqrt(np.pi))
    assert crps(mean, std, targets) == pytest.approx(closed.mean(), rel=1e-12)
    assert picp(mean - std, mean + std, targets) == np.mean(np.abs(y - m) <= s)


def test_rmse_equals_torchmetrics(predictions: tuple[Tensor, Tensor, Tensor]) -> None:
    regression = pytest.importorskip("torchmetrics.functional.regression")
    mean, _, targets = predictions
    theirs = regression.mean_squared_error(mean.flatten(), targets.flatten(), squared=False)
    assert rmse(mean, targets) == pytest.approx(float(theirs), rel=1e-12)


def test_crps_is_the_integral_of_the_squared_distance_to_the_step() -> None:
    m, s, y = 0.3, 0.7, 1.1
    below = integrate.quad(lambda x: stats.norm.cdf(x, m, s) ** 2, -10, y)[0]
    above = integrate.quad(lambda x: stats.norm.sf(x, m, s) ** 2, y, 10)[0]
    mean, std, target = (torch.tensor([value], dtype=torch.float64) for value in (m, s, y))
    assert crps(mean, std, target) == pytest.approx(below + above, rel=1e-9)


def test_an_interval_covers_at_its_level(generator: torch.Generator) -> None:
    y = torch.randn(20_000, generator=generator, dtype=torch.float64)
    limit = torch.full_like(y, stats.norm.ppf(0.95))
    assert picp(-limit, limit, y) == pytest.approx(0.9, abs=0.007)


ONES = torch.ones(4)


@pytest.mark.parametrize(
    ("score", "arguments", "error", "message"),
    [
        (rmse, (ONES, ONES[:, None]), ShapeError, r"targets of the shape of mean, \[4\]. Got \[4, 1\]"),
        (gaussian_nll, (ONES, ONES[:1], ONES), ShapeError, r"variance of the shape of mean.*expand_as"),
        (picp, (ONES, ONES, ONES[:2]), ShapeError, r"targets of the shape of low"),
        (rmse, (ONES[:0], ONES[:0]), DataError, r"at least one number in mean"),
        (rmse, (ONES, ONES * torch.nan), DataError, r"finite targets. Got 4 NaN"),
        (gaussian_nll, (ONES, 0 * ONES, ONES), DataError, r"variance > 0. Got 4 of 4 not.*noise"),
        (crps, (ONES, -ONES, ONES), DataError, r"std > 0. Got 4 of 4 not"),
        (picp, (ONES, 0 * ONES, ONES), DataError, r"low <= high. Got 4 intervals"),
    ],
)
def test_bad_input_costs_a_sentence(score, arguments: tuple[Tensor, ...], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        score(*arguments)


def test_the_core_alone_has_the_crps_at_all_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    """Near a mean, s (√2 - 1)/√π; far from it, the distance less s/√π; also where (y - m)/s overflows."""
    monkeypatch.setitem(sys.modules, "scoringrules", None)
    m, s, y = torch.tensor([[3.0, -2.0, 0.0], [0.5, 0.25, 1e-300], [3.0, 1e6, 1e10]], dtype=torch.float64)
    for i, exact in enumerate((0.5 * (2**0.5 - 1) / np.pi**0.5, 1e6 + 2 - 0.25 / np.pi**0.5, 1e10)):
        assert crps(m[i], s[i], y[i]) == pytest.approx(exact, rel=1e-14)


def test_arrays_are_not_tensors() -> None:
    values: Any = np.zeros(3)
    with unchecked(), refused(ConfigError, expected="to be one of Tensor", got="ndarray", hint="torch.as_tensor("):
        rmse(values, torch.zeros(3))
