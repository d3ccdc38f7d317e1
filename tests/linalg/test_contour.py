"""Inverse roots by contour quadrature, and intervals that hold a spectrum."""

from __future__ import annotations

import math

import pytest
import torch

from lapwing.ground.errors import ConfigError, NumericalError, ShapeError
from lapwing.ground.probes import gaussian
from lapwing.linalg import Dense, Diagonal, LowRank
from lapwing.linalg.contour import contour_inverse_root, inverse_root_rule, spectral_interval
from lapwing.linalg.lanczos import lanczos
from lapwing.linalg.shifted import shifted_solve
from tests.linalg.cases import normal, spd, spectrum

POINTS = (1, 2, 3, 4, 5, 8, 10, 15, 20)
# Largest relative error of the rule on [1, κ]. The last column is from 40-digit arithmetic: elliptic functions that
# cancel near the end of the interval give 7e-14 and 3.4e-8 there.
ORACLE = {
    1e2: (0.29, 1.9e-2, 1.3e-3, 8.9e-5, 6.1e-6, 2.0e-9, 9.4e-12, 0.0, 0.0),
    1e4: (0.93, 0.15, 2.9e-2, 5.5e-3, 1.1e-3, 7.6e-6, 2.8e-7, 7e-11, 2.0e-14),
    1e6: (1.6, 0.40, 0.12, 3.5e-2, 1.0e-2, 2.9e-4, 2.7e-5, 7e-8, 1.9e-10),
    1e8: (2.4, 0.72, 0.26, 9.9e-2, 3.8e-2, 2.3e-3, 3.6e-4, 3.4e-6, 3.3e-8),
}


def error(smallest: float, largest: float, points: int) -> float:
    """Largest relative error of a rule on its interval."""
    rule = inverse_root_rule(smallest, largest, points)
    values = torch.logspace(math.log10(smallest), math.log10(largest), 5001, dtype=torch.float64)
    values[0], values[-1] = smallest, largest
    return (((rule.weights / (values[:, None] + rule.shifts)).sum(1) * values.sqrt()) - 1).abs().max().item()


@pytest.mark.parametrize("condition", ORACLE)
@pytest.mark.parametrize("column", range(len(POINTS)))
def test_error_of_the_rule(condition: float, column: int) -> None:
    expected = ORACLE[condition][column]
    half_a_digit = 0.06 * 10 ** math.floor(math.log10(expected)) if expected else 0.0
    if column == 7:  # printed to one digit
        half_a_digit *= 10
    assert error(1.0, condition, POINTS[column]) == pytest.approx(expected, rel=0, abs=half_a_digit + 2e-15)


@pytest.mark.parametrize("condition", [1.0, 1 + 1e-12, 1.5, 1e10, 1e13, 1e16])
def test_extreme_intervals(condition: float) -> None:
    assert error(1.0, condition, 60) < 1e-9
    assert error(1e-200, 1e-200 * condition, 60) < 1e-9


@pytest.mark.parametrize("points", [1, 2, 7, 8])
def test_nodes_mirror_each_other_about_the_geometric_mean(points: int) -> None:
    rule = inverse_root_rule(0.5, 800.0, points)
    assert (rule.weights > 0).all()
    assert (rule.shifts.diff() > 0).all()
    torch.testing.assert_close(rule.shifts * rule.shifts.flip(0), torch.full((points,), 400.0).double())
    ratio = rule.weights / rule.shifts.sqrt()
    torch.testing.assert_close(ratio, ratio.flip(0))


@pytest.mark.parametrize(
    ("smallest", "largest", "points"),
    [(0.0, 1.0, 3), (-1.0, 1.0, 3), (2.0, 1.0, 3), (1.0, math.inf, 3), (math.nan, 1.0, 3), (1.0, 2.0, 0)],
)
def test_intervals_that_make_no_sense(smallest: float, largest: float, points: int) -> None:
    with pytest.raises(ConfigError, match="0 < smallest <= largest"):
        inverse_root_rule(smallest, largest, points)


def test_the_interval_is_found(generator: torch.Generator) -> None:
    values, b = spectrum(40, 1e3), normal(40, 2)
    p = LowRank(normal(40, 2), Diagonal(values.flip(0)))
    inverse = contour_inverse_root(Diagonal(values), b, points=20, rtol=1e-8, generator=generator)
    torch.testing.assert_close(inverse.value, b / values.sqrt()[:, None], rtol=1e-6, atol=1e-6)
    eye = torch.eye(40, dtype=torch.float64)
    draws = contour_inverse_root(Diagonal(values), eye, points=20, preconditioner=p, generator=generator).value
    torch.testing.assert_close(draws @ draws.mT, torch.diag(1 / values), rtol=1e-4, atol=1e-4 / values.min().item())


def test_an_interval_that_is_too_narrow_costs_accuracy() -> None:
    values, b = spectrum(30, 1e4), normal(30)
    exact = b / values.sqrt()

    def off(interval: tuple[float, float]) -> float:
        value = contour_inverse_root(Diagonal(values), b, interval=interval, rtol=1e-9).value
        return ((value - exact).norm() / exact.norm()).item()

    assert off((3e-4, 3.0)) < 1e-6
    assert off((3e-5, 30.0)) < 1e-4
    assert off((3e-3, 3.0)) > 1e-3


def test_either_solver() -> None:
    operator, b, interval = Dense(spd(30, 1e4)), normal(30, 2), (3e-4, 3.0)
    conjugate = contour_inverse_root(operator, b, interval=interval, rtol=1e-9)
    minimal = contour_inverse_root(operator, b, interval=interval, rtol=1e-9, method="minres")
    torch.testing.assert_close(conjugate.value, minimal.value, rtol=1e-6, atol=1e-6)
    shifts = inverse_root_rule(*interval, 10).shifts
    each = shifted_solve(operator, b, shifts, method="minres", rtol=1e-9).residual
    torch.testing.assert_close(minimal.residual, each.max(0).values)
    assert conjugate.residual.shape == (2,)
    assert abs(conjugate.iterations - minimal.iterations) < 5


def test_a_vector_and_float32() -> None:
    values, b = spectrum(30, 100.0).float(), normal(30).float()
    inverse = contour_inverse_root(Diagonal(values), b, interval=(0.03, 3.0), preconditioner=Diagonal(values.double()))
    assert (inverse.value.dtype, inverse.value.shape) == (torch.float32, (30,))
    torch.testing.assert_close(inverse.value, b / values.sqrt(), rtol=1e-4, atol=1e-4)


def test_operators_without_a_root(generator: torch.Generator) -> None:
    values = spectrum(30, 10.0)
    values[3] = -1.0
    with pytest.raises(NumericalError, match="may reach down to -1"):
        contour_inverse_root(Diagonal(values), normal(30), generator=generator)
    with pytest.raises(ShapeError, match=r"a vector \[30\]"):
        contour_inverse_root(Diagonal(values), normal(29), preconditioner=Diagonal(values.abs()))


@pytest.mark.parametrize("condition", [1.0, 1e2, 1e4])
@pytest.mark.parametrize("d", [1, 2, 60, 500])
def test_the_interval_holds_the_spectrum(condition: float, d: int, generator: torch.Generator) -> None:
    values = spectrum(d, condition)
    low, high = spectral_interval(Diagonal(values), generator=generator)
    assert 0 < low < values.min() <= values.max() < high
    assert low > values.min() / 2
    assert high < 1.2 * values.max()


def test_the_interval_moves_outward_while_an_end_has_not_converged() -> None:
    values, seed = torch.linspace(1.0, 1e4, 3000, dtype=torch.float64), torch.Generator().manual_seed
    start = gaussian([3000], like=values, generator=seed(0))
    for steps in (4, 20):
        ritz = lanczos(Diagonal(values), start, steps).ritz[0]
        low, high = spectral_interval(Diagonal(values), steps=steps, margin=1.0001, generator=seed(0))
        assert 0 < low < ritz.min() / 3
        assert ritz.max() < 1e4 < high < 1.5e4


def test_the_interval_of_a_preconditioned_operator(generator: torch.Generator) -> None:
    matrix, other = spd(30, 1e3), spd(30, 1e2, seed=1)
    exact = torch.linalg.eigvals(torch.linalg.solve(other, matrix)).real
    low, high = spectral_interval(Dense(matrix), preconditioner=Dense(other), generator=generator)
    assert exact.min() / 1.2 < low < exact.min()
    assert exact.max() < high < 1.2 * exact.max()
    low, high = spectral_interval(Dense(matrix), preconditioner=Dense(matrix), margin=1.01, generator=generator)
    assert (low, high) == (pytest.approx(1 / 1.01), pytest.approx(1.01))


def test_the_interval_of_indefinite_and_singular_operators(generator: torch.Generator) -> None:
    values = torch.linspace(-2.0, 3.0, 40, dtype=torch.float64)
    low, high = spectral_interval(Diagonal(values), generator=generator)
    assert -2.5 < low < -2
    assert 3 < high < 3.5
    low, high = spectral_interval(Diagonal(torch.arange(4.0)), generator=generator)
    assert -1e-5 < low < 1e-5
    assert spectral_interval(Diagonal(torch.zeros(4)), generator=generator) == (0.0, 0.0)


def test_bad_input_of_the_interval() -> None:
    with pytest.raises(ConfigError, match="a margin above 1"):
        spectral_interval(Dense(spd(4, 10.0)), margin=1.0)
    with pytest.raises(NumericalError, match="finite numbers"):
        spectral_interval(Diagonal(torch.tensor([1.0, float("nan")])))
