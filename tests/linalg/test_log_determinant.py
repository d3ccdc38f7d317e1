"""Functions of a matrix; its log-determinant, with an error as stated; the bound on that holds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lapwing.ground.errors import ConfigError, NumericalError, ShapeError
from lapwing.ground.results import Estimate
from lapwing.linalg import Dense, Diagonal, LowRank, Structured
from lapwing.linalg.log_determinant import log_determinant
from tests.linalg.cases import normal, spd, spectrum
from tests.linalg.test_lanczos import counted


def precision(d: int = 30) -> Tensor:
    """A low-rank matrix with a decaying spectrum, plus a shift: what the precision of a network looks like."""
    factor = normal(d, 12, seed=3) * spectrum(12, 300.0)
    return factor @ factor.mT + 0.1 * torch.eye(d, dtype=torch.float64)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def z_scores(matrix: Tensor, seeds: int, **options) -> Tensor:
    truth = torch.logdet(matrix).item()
    found = [log_determinant(Dense(matrix), generator=seeded(seed), **options) for seed in range(seeds)]
    return torch.tensor([(estimate.value - truth) / estimate.stderr for estimate in found], dtype=torch.float64)


@pytest.mark.parametrize(("preconditioned", "seeds"), [(False, 200), (True, 80)])
def test_it_covers_the_truth_at_its_stated_error(preconditioned: bool, seeds: int) -> None:
    matrix = precision(8)
    preconditioner = Diagonal(matrix.diagonal()) if preconditioned else None
    z = z_scores(matrix, seeds, samples=64, preconditioner=preconditioner)
    assert (z.abs() <= 1.96).double().mean() >= 0.92  # 94.5 % expected, give or take 1.6
    assert abs(z.mean()) < 0.25
    assert 0.85 < z.std() < 1.2


def test_steps_that_do_not_suffice_widen_the_error() -> None:
    matrix = spd(60, 1e6)
    short, long = (log_determinant(Dense(matrix), steps=steps, generator=seeded(0)) for steps in (10, 200))
    assert short.value > long.value + long.stderr  # Gauss quadratures of the logarithm err upwards
    assert short.stderr > 2 * long.stderr
    assert (z_scores(matrix, 20, steps=10).abs() < 4).all()


def test_a_preconditioner_lowers_variance_and_steps() -> None:
    matrix = precision(60)
    values, vectors = torch.linalg.eigh(matrix - 0.1 * torch.eye(60).double())
    top = LowRank(vectors[:, -5:] * values[-5:].sqrt()).shifted(0.1)
    found: dict[bool, tuple[Estimate, int]] = {}
    for known in (False, True):
        operator, columns = counted(matrix)
        estimate = log_determinant(operator, preconditioner=top if known else None, generator=seeded(0))
        found[known] = (estimate, sum(columns))
        assert abs(estimate.value - torch.logdet(matrix).item()) < 3 * estimate.stderr
    assert found[True][0].stderr < 0.8 * found[False][0].stderr
    assert found[True][1] < 0.8 * found[False][1]


@pytest.mark.parametrize("condition", [1.0, 1e2, 1e4])
def test_it_is_exact_where_the_preconditioner_is(condition: float) -> None:
    for preconditioner in (Dense(spd(20, condition)), LowRank(normal(20, 3)).shifted(1 / condition)):
        operator, columns = counted(preconditioner.dense())
        estimate = log_determinant(operator, samples=3, preconditioner=preconditioner, generator=seeded(0))
        assert estimate.value == pytest.approx(preconditioner.logdet().item(), abs=1e-13 * 20 * condition)
        assert estimate.stderr < 1e-13 * 20 * condition
        assert sum(columns) <= 4 * 3


@pytest.mark.parametrize("d", [1, 4])
def test_it_is_exact_for_diagonal_operators(d: int) -> None:
    operator: Structured = Diagonal(spectrum(d, 1e3))
    estimate = log_determinant(operator, samples=2, generator=seeded(0))
    assert estimate.value == pytest.approx(operator.logdet().item())
    assert estimate.stderr < 1e-9
    assert estimate.samples == 2


def test_it_runs_in_float32_to_what_products_resolve() -> None:
    matrix = precision()
    single = log_determinant(Dense(matrix.float()), samples=200, generator=seeded(0))
    double = log_determinant(Dense(matrix), samples=200, generator=seeded(0))
    assert single.value == pytest.approx(double.value, abs=0.02 * double.stderr + 1e-3)


@pytest.mark.parametrize("d", [3, 40])
@pytest.mark.parametrize("condition", [1.0, 100.0])
def test_the_stated_error_is_never_below_the_rounding_of_products(condition: float, d: int) -> None:
    known = Dense(spd(d, condition).float())
    truth = torch.logdet(known.dense().double()).item()
    eps = torch.finfo(torch.float32).eps
    for seed in range(5):
        estimate = log_determinant(counted(known.dense())[0], samples=8, preconditioner=known, generator=seeded(seed))
        assert eps * d <= estimate.stderr < 3 * eps * d
        assert abs(estimate.value - truth) <= 3 * estimate.stderr


def test_bad_input() -> None:
    with pytest.raises(ConfigError, match="samples of at least 2"):
        log_determinant(Dense(spd(4, 10.0)), samples=1)
    with pytest.raises(ConfigError, match="steps of at least 1"):
        log_determinant(Dense(spd(4, 10.0)), steps=0)
    with pytest.raises(ConfigError, match="a positive bias"):
        log_determinant(Dense(spd(4, 10.0)), bias=0.0)
    with pytest.raises(ShapeError, match="a root with 4 rows"):
        log_determinant(Dense(spd(4, 10.0)), preconditioner=Diagonal(torch.ones(3).double()))
    with pytest.raises(NumericalError, match=r"a positive definite operator\. Got a Ritz value of -1"):
        log_determinant(Diagonal(torch.tensor([-1.0, 2.0]).double()), generator=seeded(0))
    with pytest.raises(NumericalError, match="finite numbers"):
        log_determinant(Diagonal(torch.tensor([float("inf"), 2.0])))
