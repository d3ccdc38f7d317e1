"""Scores of Gaussian predictions, and distances between them."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, linalg, stats
from torch import Tensor

from lapwing.ground.errors import ConfigError, DataError, LapwingError, NumericalError, ShapeError
from lapwing.metrics import (
    crps,
    gaussian_nll,
    gaussian_symmetric_kl,
    gaussian_wasserstein,
    interval_score,
    interval_width,
    picp,
    rmse,
)
from lapwing.predictive import Moments
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
    fine = np.maximum(np.abs(y - m) - s, 0)
    expected = np.mean(2 * s + 2 / 0.2 * fine)
    assert interval_score(mean - std, mean + std, targets, level=0.8) == pytest.approx(expected, rel=1e-12)
    assert interval_width(mean - std, mean + std) == pytest.approx(np.mean(2 * s), rel=1e-12)


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
    with unchecked(), refused(ConfigError, "to be of type Tensor"):
        rmse(values, torch.zeros(3))


N, T, C = 5, 2, 4


def moments(generator: torch.Generator, rank: int = C + 2) -> Moments:
    factor = torch.randn(N, T, C, rank, generator=generator, dtype=torch.float64)
    return Moments(torch.randn(N, T, C, generator=generator, dtype=torch.float64), factor @ factor.mT)


@pytest.fixture
def pair(generator: torch.Generator) -> tuple[Moments, Moments]:
    return moments(generator), moments(generator)


def each(first: Moments, second: Moments) -> list[tuple[np.ndarray, ...]]:
    parts = (first.mean.flatten(0, 1), first.covariance.flatten(0, 1))
    others = (second.mean.flatten(0, 1), second.covariance.flatten(0, 1))
    return [tuple(part.numpy() for part in row) for row in zip(*parts, *others, strict=True)]


def kl(m1: np.ndarray, s1: np.ndarray, m2: np.ndarray, s2: np.ndarray) -> float:
    inverse, d = np.linalg.inv(s2), m2 - m1
    logs = np.linalg.slogdet(s2)[1] - np.linalg.slogdet(s1)[1]
    return 0.5 * float(np.trace(inverse @ s1) - len(d) + d @ inverse @ d + logs)


def wasserstein(m1: np.ndarray, s1: np.ndarray, m2: np.ndarray, s2: np.ndarray) -> float:
    root = linalg.sqrtm(s2)
    cross = linalg.sqrtm(root @ s1 @ root)
    return math.sqrt(float((m1 - m2) @ (m1 - m2) + np.trace(s1 + s2 - 2 * np.real(cross))))


def test_symmetric_kl_equals_the_textbook_form(pair: tuple[Moments, Moments]) -> None:
    found = gaussian_symmetric_kl(*pair)
    expected = [0.5 * (kl(a, b, c, d) + kl(c, d, a, b)) for a, b, c, d in each(*pair)]
    assert found.shape == (N, T)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.flatten().numpy(), expected, rtol=1e-9)


def test_symmetric_kl_equals_that_of_torch(pair: tuple[Moments, Moments]) -> None:
    p, q = (torch.distributions.MultivariateNormal(m.mean, m.covariance) for m in pair)
    theirs = 0.5 * (torch.distributions.kl_divergence(p, q) + torch.distributions.kl_divergence(q, p))
    torch.testing.assert_close(gaussian_symmetric_kl(*pair), theirs, rtol=1e-9, atol=0)


def test_wasserstein_equals_the_form_with_matrix_roots(pair: tuple[Moments, Moments]) -> None:
    found = gaussian_wasserstein(*pair)
    assert found.shape == (N, T)
    np.testing.assert_allclose(found.flatten().numpy(), [wasserstein(*row) for row in each(*pair)], rtol=1e-9)


def test_wasserstein_of_one_output_is_the_distance_of_mean_and_deviation() -> None:
    first = Moments(torch.tensor([[1.0], [0.0]]), torch.tensor([[[4.0]], [[0.0]]]))
    second = Moments(torch.tensor([[4.0], [0.0]]), torch.tensor([[[36.0]], [[9.0]]]))
    assert gaussian_wasserstein(first, second).tolist() == pytest.approx([5.0, 3.0], rel=1e-14)


@pytest.mark.parametrize("distance", [gaussian_symmetric_kl, gaussian_wasserstein])
def test_distances_are_symmetric_and_0_to_oneself(distance, pair: tuple[Moments, Moments]) -> None:
    torch.testing.assert_close(distance(*pair), distance(*reversed(pair)), rtol=1e-10, atol=0)
    assert float(distance(pair[0], pair[0]).max()) < 1e-13
    assert float(distance(*pair).min()) > 0.1


def test_close_gaussians_keep_their_digits() -> None:
    base, step = torch.diag(torch.tensor([4.0, 1.0], dtype=torch.float64))[None], 1e-9
    mean = torch.zeros(1, 2, dtype=torch.float64)
    near = Moments(mean, base * (1 + step) ** 2)
    found = gaussian_wasserstein(near, Moments(mean, base))
    assert float(found) == pytest.approx(step * math.sqrt(5), rel=1e-5)
    assert float(gaussian_symmetric_kl(near, Moments(mean, base))) == pytest.approx(2 * step**2, rel=1e-6)


def rotation(generator: torch.Generator) -> Tensor:
    return torch.linalg.qr(torch.randn(C, C, generator=generator, dtype=torch.float64))[0]


def embedded(mean: Tensor, covariance: Tensor, turn: Tensor) -> Moments:
    """A Gaussian of two outputs, laid into four."""
    wide, tall = torch.zeros(1, C, dtype=torch.float64), torch.zeros(1, C, C, dtype=torch.float64)
    wide[0, :2], tall[0, :2, :2] = mean, covariance
    return Moments(wide @ turn.T, turn @ tall @ turn.T)


def test_where_both_are_singular_alike_the_distances_are_those_within(generator: torch.Generator) -> None:
    turn, small = rotation(generator), []
    for _ in range(2):
        factor = torch.randn(2, 3, generator=generator, dtype=torch.float64)
        small.append((torch.randn(2, generator=generator, dtype=torch.float64), factor @ factor.T))
    inner = [Moments(mean[None], covariance[None]) for mean, covariance in small]
    outer = [embedded(*part, turn) for part in small]
    for distance in (gaussian_symmetric_kl, gaussian_wasserstein):
        torch.testing.assert_close(distance(*outer), distance(*inner), rtol=1e-8, atol=0)


def test_wasserstein_of_singular_gaussians_with_other_ranges(generator: torch.Generator) -> None:
    low, full = moments(generator, rank=2), moments(generator)
    lower = moments(generator, rank=1)
    for first, second in ((low, full), (low, lower), (full, lower)):
        squares = (first.mean - second.mean).square().sum(-1)
        traces = (first.covariance + second.covariance).diagonal(dim1=-2, dim2=-1).sum(-1)
        products = torch.linalg.eigvals(first.covariance @ second.covariance).real.clamp(min=0)
        expected = (squares + traces - 2 * products.sqrt().sum(-1)).sqrt()
        torch.testing.assert_close(gaussian_wasserstein(first, second), expected, rtol=1e-6, atol=0)
    certain = Moments.certain(full.mean)
    expected = full.covariance.diagonal(dim1=-2, dim2=-1).sum(-1).sqrt()
    torch.testing.assert_close(gaussian_wasserstein(full, certain), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("floor", [1e-6, 1e-3])
def test_a_direction_in_which_only_one_varies_costs_what_the_floor_says(floor: float) -> None:
    mean = torch.zeros(1, 3, dtype=torch.float64)
    flat, round_ = (torch.diag(torch.tensor(v, dtype=torch.float64))[None] for v in ([2.0, 2, 0], [2.0, 2, 2]))
    found = gaussian_symmetric_kl(Moments(mean, flat), Moments(mean, round_), floor=floor)
    delta = 1 - 2 * floor
    assert float(found) == pytest.approx(delta**2 / (1 - delta**2), rel=1e-6)
    assert float(found) == pytest.approx(1 / (4 * floor) - 1, rel=2 * floor)
    variances = (2 * floor, 2 * (1 - floor))
    assert float(found) == pytest.approx(0.25 * (variances[0] / variances[1] + variances[1] / variances[0] - 2))


@pytest.mark.parametrize("floor", [1e-6, 1e-3])
def test_means_apart_where_neither_varies_count_against_the_floor(floor: float) -> None:
    mean = torch.tensor([[0.0, 0.0], [0.0, 0.1]], dtype=torch.float64)
    covariance = torch.diag(torch.tensor([3.0, 0.0], dtype=torch.float64)).expand(2, 2, 2)
    found = gaussian_symmetric_kl(Moments(mean, covariance), Moments(0 * mean, covariance), floor=floor)
    assert found.tolist() == pytest.approx([0.0, 0.01 / (2 * floor * 6)], rel=1e-10)


def test_where_nothing_varies_only_equal_means_are_at_a_finite_distance() -> None:
    one, other = Moments.certain(torch.zeros(2, 3)), Moments.certain(torch.tensor([[0.0, 0, 0], [0, 2, 0]]))
    assert gaussian_symmetric_kl(one, other).tolist() == [0, math.inf]
    assert gaussian_wasserstein(one, other).tolist() == [0, 2]


def test_symmetric_kl_does_not_depend_on_the_units(generator: torch.Generator, pair: tuple[Moments, Moments]) -> None:
    scale = torch.diag(torch.tensor([1.0, 30.0, 1e-2, 1e2], dtype=torch.float64))
    scaled = [Moments(m.mean @ scale, scale @ m.covariance @ scale) for m in pair]
    found = gaussian_symmetric_kl(scaled[0], scaled[1], floor=1e-12)
    torch.testing.assert_close(found, gaussian_symmetric_kl(*pair), rtol=1e-6, atol=0)


def test_single_precision_is_close_and_its_rounding_is_forgiven(generator: torch.Generator) -> None:
    low, other = moments(generator, rank=2), moments(generator, rank=2)
    single = [Moments(m.mean.float(), m.covariance.float()) for m in (low, other)]
    torch.testing.assert_close(gaussian_wasserstein(*single), gaussian_wasserstein(low, other), rtol=1e-3, atol=0)
    assert float(gaussian_symmetric_kl(single[0], low).max()) < 1e-3
    full = [moments(generator), moments(generator)]
    single = [Moments(m.mean.float(), m.covariance.float()) for m in full]
    torch.testing.assert_close(gaussian_symmetric_kl(*single), gaussian_symmetric_kl(*full), rtol=1e-3, atol=0)


GOOD = Moments(torch.zeros(2, 3), torch.eye(3).expand(2, 3, 3))


@pytest.mark.parametrize("distance", [gaussian_symmetric_kl, gaussian_wasserstein])
@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (
            Moments(torch.zeros(3, 3), torch.eye(3).expand(3, 3, 3)),
            ShapeError,
            r"the reference, \[2, 3\]. Got \[3, 3\]",
        ),
        (Moments(torch.zeros(2, 3) * torch.nan, GOOD.covariance), DataError, "finite means"),
        (Moments(GOOD.mean, GOOD.covariance * torch.nan), DataError, "finite covariances"),
        (Moments(GOOD.mean, -GOOD.covariance), NumericalError, "Got a smallest eigenvalue of -1"),
        (GOOD.mean, ConfigError, r"moments to be one of Moments, Draws. Got Tensor.*posterior.predict\(x\)"),
    ],
)
def test_bad_moments_cost_a_sentence(distance, bad: Any, error: type[LapwingError], message: str) -> None:
    with unchecked(), pytest.raises(error, match=message):
        distance(bad, GOOD)


@pytest.mark.parametrize("floor", [0.0, -1e-6, 0.5, math.nan, "a"])
def test_a_floor_outside_its_range_is_refused(floor: Any) -> None:
    with unchecked(), pytest.raises(ConfigError, match="a floor above 0"):
        gaussian_symmetric_kl(GOOD, GOOD, floor=floor)
