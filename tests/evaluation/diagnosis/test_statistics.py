"""Statistics of known distribution, and directions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from lapwing.evaluation.diagnosis import statistics
from lapwing.evaluation.diagnosis.statistics import directions_of, inner
from lapwing.linalg import Dense, Diagonal


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def p_values(check, draw, generator: torch.Generator, repeats: int = 200) -> list[float]:
    return [check(draw(generator)).p_value for _ in range(repeats)]


CHECKS = {
    "radius": lambda e: statistics.radius(e.square().sum(1), e.shape[1]),
    "mean": lambda e: statistics.mean(e @ e.mT, e.shape[1]),
    "pairs": lambda e: statistics.pairs(e @ e.mT, e.shape[1]),
    "spread": lambda e: statistics.spread(e.mT),
    "shape": lambda e: statistics.shape(e.mT),
}


@pytest.mark.parametrize("dimension", [2, 7, 60])
@pytest.mark.parametrize("name", list(CHECKS))
def test_p_values_of_right_draws_are_uniform(name: str, dimension: int, generator: torch.Generator) -> None:
    found = p_values(CHECKS[name], lambda g: normal(g, 40, dimension), generator)
    assert stats.kstest(found, "uniform").pvalue > 1e-3
    assert np.mean(np.array(found) < 0.01) < 0.035


def test_pairs_of_long_vectors_have_uniform_p_values(generator: torch.Generator) -> None:
    found = p_values(CHECKS["pairs"], lambda g: normal(g, 10, 1000), generator, 400)
    assert stats.kstest(found, "uniform").pvalue > 1e-3
    assert 0.02 < np.mean(np.array(found) < 0.05) < 0.1


def test_the_worst_direction_rarely_rejects_right_draws_and_finds_a_single_wrong_one(
    generator: torch.Generator,
) -> None:
    right = p_values(statistics.worst, lambda g: normal(g, 10, 100), generator)
    assert np.mean(np.array(right) < 0.05) < 0.11
    for scale, offset in ((2.0, 0.0), (0.5, 0.0), (1.0, 0.6), (1.0, -0.6)):
        z = normal(generator, 10, 100)
        z[3] = scale * z[3] + offset
        assert statistics.worst(z).p_value < 1e-4


def test_each_statistic_sees_what_it_is_for(generator: torch.Generator) -> None:
    e = normal(generator, 60, 200)
    assert CHECKS["radius"](1.1 * e).p_value < 1e-10
    assert CHECKS["mean"](e + 0.3).p_value < 1e-3
    assert CHECKS["mean"](torch.cat([e, -e])).p_value < 1e-10, "antithetic pairs have too good a mean"
    assert CHECKS["pairs"](torch.cat([e, e])).p_value < 1e-10, "every draw twice"
    assert CHECKS["pairs"](e[:, :100].repeat(1, 2)).p_value < 1e-10, "half of the directions missing"
    assert CHECKS["spread"](0.95 * e).p_value < 1e-10
    assert CHECKS["shape"](e.sign()).p_value < 1e-10


@pytest.mark.parametrize(("size", "dimension"), [(6, 5), (3, 2)])
def test_pairs_have_the_stated_mean_and_variance(size: int, dimension: int, generator: torch.Generator) -> None:
    e = normal(generator, 40_000, size, dimension)
    total = (e @ e.mT).tril(-1).square().sum((1, 2)) / dimension
    count = size * (size - 1) / 2
    assert float(total.mean()) == pytest.approx(count, rel=0.01)
    stated = count * (2 + 6 / dimension) + 4 * count * (size - 2) / dimension
    assert float(total.var()) == pytest.approx(stated, rel=0.05)
    assert statistics.pairs(e[0] @ e[0].mT, dimension).statistic == pytest.approx(float(total[0]) / count)


@pytest.mark.parametrize(("size", "dimension"), [(2, 3), (3, 2)])
def test_pairs_of_few_short_draws_have_p_values_of_that_variance(
    size: int, dimension: int, generator: torch.Generator
) -> None:
    e = normal(generator, 40_000, size, dimension)
    total = (e @ e.mT).tril(-1).square().sum((1, 2)) / dimension
    count, variance = size * (size - 1) / 2, float(total.var())
    for factor in (0.1, 0.5):
        gram = torch.full((size, size), (factor * dimension) ** 0.5, dtype=torch.float64)
        scaled = stats.gamma(count**2 / variance, scale=variance / count)  # its mean is count
        expected = 2 * min(scaled.cdf(factor * count), scaled.sf(factor * count))
        assert statistics.pairs(gram, dimension).p_value == pytest.approx(min(1.0, expected), rel=0.1)


def test_holm_is_the_step_down_procedure() -> None:
    assert statistics.holm([0.04, 0.001, 0.03]) == pytest.approx((0.06, 0.003, 0.06))
    assert statistics.holm([]) == ()
    assert statistics.holm([0.6, 0.9]) == (1.0, 1.0)


def test_a_detectable_error_is_detected_nine_times_in_ten(generator: torch.Generator) -> None:
    error = statistics.detectable(800, 0.01)
    scale = (1 + error) ** 0.5
    found = p_values(statistics.spread, lambda g: scale * normal(g, 8, 100), generator)
    assert np.mean(np.array(found) < 0.01) == pytest.approx(0.9, abs=0.05)


def test_stiff_and_sloppy_directions_are_the_ends_of_the_spectrum(generator: torch.Generator) -> None:
    size, values = 90, torch.logspace(-1, 2, 90, dtype=torch.float64)
    q = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=generator)).Q
    found = directions_of(Dense(q @ torch.diag(values) @ q.mT), 4, generator=generator)
    assert list(found) == ["random", "stiff", "sloppy"]
    curvature = {name: (q.mT @ u).square().mT @ values / u.square().sum(0) for name, u in found.items()}
    torch.testing.assert_close(curvature["stiff"].sort().values, values[-4:], rtol=1e-3, atol=0)
    assert float(curvature["sloppy"].max()) < float(values[20])
    assert float(values[20]) < float(curvature["random"].min()) < float(curvature["stiff"].min())


def test_a_flat_spectrum_has_directions_too(generator: torch.Generator) -> None:
    found = directions_of(Diagonal(torch.full((9,), 2.0)), 3, generator=generator)
    assert all(u.shape[0] == 9 and u.shape[1] >= 1 and bool(u.isfinite().all()) for u in found.values())


@pytest.mark.parametrize("rows", [5, 2**16 + 3])
def test_sums_in_slabs_are_those_of_the_whole(rows: int, generator: torch.Generator) -> None:
    a, b = torch.randn(rows, 2, generator=generator), torch.randn(rows, 3, generator=generator)
    torch.testing.assert_close(inner(a, b), a.double().mT @ b.double())
