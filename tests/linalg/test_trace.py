"""Traces from products: unbiased, as accurate as they say, and far better than Hutchinson where the spectrum decays."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lapwing.ground.errors import ConfigError, NumericalError, ShapeError
from lapwing.linalg import Dense, Diagonal, FunctionOperator, LowRank
from lapwing.linalg.trace import hutch_plus_plus, hutchinson, xtrace
from tests.linalg.cases import normal, spd
from tests.linalg.test_lanczos import counted

every = pytest.mark.parametrize("estimator", [hutchinson, hutch_plus_plus, xtrace])


def symmetric(values: Tensor) -> Tensor:
    vectors = torch.linalg.qr(normal(len(values), len(values), seed=5)).Q
    matrix = vectors @ torch.diag(values) @ vectors.mT
    return (matrix + matrix.mT) / 2


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


SPECTRA = {
    "decaying": 1e4 ** -torch.linspace(0, 1, 50, dtype=torch.float64),
    "algebraic": 1 / torch.arange(1, 51, dtype=torch.float64),
    "flat": torch.linspace(1, 2, 50, dtype=torch.float64),
    "indefinite": torch.linspace(-1, 2, 50, dtype=torch.float64),
}


@every
@pytest.mark.parametrize("values", SPECTRA.values(), ids=SPECTRA.keys())
def test_it_covers_the_truth_at_its_stated_error(estimator, values: Tensor) -> None:
    operator, truth = Dense(symmetric(values)), values.sum().item()
    found = [estimator(operator, samples=72, generator=seeded(seed)) for seed in range(200)]
    errors = torch.tensor([estimate.value - truth for estimate in found], dtype=torch.float64)
    stderr = torch.tensor([estimate.stderr for estimate in found], dtype=torch.float64)
    assert (errors.abs() <= 1.96 * stderr).double().mean() >= 0.9
    assert errors.mean().abs() < 4 * errors.std() / 200**0.5
    ratio = stderr.square().mean().sqrt() / errors.std()
    assert 0.85 < ratio < (6 if estimator is xtrace else 1.2)


def test_the_variance_is_the_textbook_s() -> None:
    matrix = spd(30, 10.0)
    off_diagonal = matrix - matrix.diagonal().diag()
    for signs, variance in ((True, 2 * off_diagonal.square().sum()), (False, 2 * matrix.square().sum())):
        estimate = hutchinson(Dense(matrix), samples=4000, signs=signs, generator=seeded(0))
        assert estimate.stderr == pytest.approx((variance / 4000).sqrt().item(), rel=0.06)
        assert estimate.samples == 4000


def test_sketches_beat_plain_probes_where_the_spectrum_decays() -> None:
    values = 1e6 ** -torch.linspace(0, 1, 80, dtype=torch.float64)
    operator, truth, worst = Dense(symmetric(values)), values.sum().item(), {}
    for estimator in (hutchinson, hutch_plus_plus, xtrace):
        found = [estimator(operator, samples=60, generator=seeded(seed)) for seed in range(20)]
        worst[estimator.__name__] = max(abs(estimate.value - truth) for estimate in found)
    assert worst["hutch_plus_plus"] < 0.1 * worst["hutchinson"]
    assert worst["xtrace"] < 0.5 * worst["hutch_plus_plus"]


def test_the_error_of_few_probes_covers_as_it_should() -> None:
    """95 % of 400 intervals hold the trace, less three standard errors; without Student's factor 81 % would."""
    matrix = symmetric(1 / torch.arange(1, 41, dtype=torch.float64))
    found = [hutch_plus_plus(Dense(matrix), samples=9, generator=seeded(seed)) for seed in range(400)]
    covered = [abs(it.value - float(matrix.trace())) <= 1.96 * it.stderr for it in found]
    assert 0.92 < sum(covered) / len(covered) < 0.98


@pytest.mark.parametrize("size", [1, 2, 9])
def test_leaving_probes_out_is_what_it_says(size: int) -> None:
    """XTrace and its error against their definitions, one basis for each probe or pair of probes left out."""
    d, probes = 25, 7
    matrix = symmetric(1.5 ** -torch.arange(d, dtype=torch.float64))
    omega = torch.randn(d, probes, generator=seeded(size), dtype=torch.float64)

    def naive(chosen: list[int]) -> float:
        found = []
        for i in chosen:
            q = torch.linalg.qr(matrix @ omega[:, [j for j in chosen if j != i]]).Q
            rest = omega[:, i] - q @ (q.mT @ omega[:, i])
            rest = rest * ((d - q.shape[1]) ** 0.5 / torch.linalg.vector_norm(rest))
            found.append((q.mT @ matrix @ q).trace() + rest @ matrix @ rest)
        return float(torch.stack(found).mean())

    everyone = list(range(probes))
    without = torch.tensor([naive([j for j in everyone if j != i]) for i in everyone], dtype=torch.float64)
    estimate = xtrace(Dense(matrix), samples=2 * probes + 1, generator=seeded(size))
    assert estimate.value == pytest.approx(naive(everyone), rel=1e-9)
    jackknife = ((probes - 1) / probes * (without - without.mean()).square().sum()).sqrt().item()
    assert estimate.stderr == pytest.approx(jackknife, rel=1e-6)
    assert estimate.samples == probes


@pytest.mark.parametrize("estimator", [hutch_plus_plus, xtrace])
@pytest.mark.parametrize("rank", [1, 5])
def test_low_rank_is_exact(estimator, rank: int) -> None:
    root = normal(40, rank)
    estimate = estimator(LowRank(root), samples=24, generator=seeded(0))
    assert estimate.value == pytest.approx(root.square().sum().item(), rel=1e-12)
    assert estimate.stderr < 1e-12 * estimate.value


@pytest.mark.parametrize("estimator", [hutch_plus_plus, xtrace])
@pytest.mark.parametrize("d", [1, 2, 5])
def test_as_many_columns_as_there_are_is_exact(estimator, d: int) -> None:
    matrix = spd(d, 100.0)
    estimate = estimator(Dense(matrix), samples=48, generator=seeded(0))
    assert estimate.value == pytest.approx(matrix.trace().item(), rel=1e-12)
    assert estimate.stderr < 1e-13


@every
def test_columns_multiplied_and_float32(estimator) -> None:
    matrix = spd(90, 100.0)
    operator, columns = counted(matrix)
    double = estimator(operator, samples=30, generator=seeded(0))
    single = estimator(Dense(matrix.float()), samples=30, generator=seeded(0))
    assert sum(columns) == 30
    assert single.value == pytest.approx(double.value, rel=1e-5)
    assert single.stderr == pytest.approx(double.stderr, rel=1e-3)


@every
def test_zero(estimator) -> None:
    estimate = estimator(Diagonal(torch.zeros(50)), generator=seeded(0))
    assert (estimate.value, estimate.stderr) == (0.0, 0.0)


@every
def test_bad_input(estimator) -> None:
    with pytest.raises(ConfigError, match="samples of at least"):
        estimator(Dense(spd(4, 10.0)), samples=1)
    with pytest.raises(ShapeError, match="a symmetric operator"):
        estimator(FunctionOperator(lambda v: v[:2], lambda u: u, (2, 4), normal(4)))
    with pytest.raises(NumericalError, match="finite numbers"):
        estimator(Diagonal(torch.tensor([1.0, float("nan")])))
