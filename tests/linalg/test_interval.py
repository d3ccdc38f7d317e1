"""The interval holds the spectrum: converged, cut short, preconditioned, indefinite."""

from __future__ import annotations

import pytest
import torch

from lapwing.ground.errors import ConfigError, NumericalError
from lapwing.linalg import Dense, Diagonal
from lapwing.linalg.interval import spectral_interval
from lapwing.linalg.lanczos import lanczos
from tests.linalg.cases import normal, spd, spectrum


@pytest.mark.parametrize("condition", [1.0, 1e2, 1e4])
@pytest.mark.parametrize("d", [1, 2, 60, 500])
def test_the_interval_holds_the_spectrum(condition: float, d: int, generator: torch.Generator) -> None:
    values = spectrum(d, condition)
    low, high = spectral_interval(Diagonal(values), generator=generator)
    assert 0 < low < values.min() <= values.max() < high
    assert low > values.min() / 2
    assert high < 1.2 * values.max()


def test_the_interval_moves_outward_while_an_end_has_not_converged() -> None:
    values, start = torch.linspace(1.0, 1e4, 3000, dtype=torch.float64), normal(3000)
    for steps in (4, 20):
        ritz = lanczos(Diagonal(values), start, steps).ritz[0]
        low, high = spectral_interval(Diagonal(values), steps=steps, margin=1.0001, start=start)
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


def test_bad_input() -> None:
    with pytest.raises(ConfigError, match="a margin above 1"):
        spectral_interval(Dense(spd(4, 10.0)), margin=1.0)
    with pytest.raises(NumericalError, match="finite products"):
        spectral_interval(Diagonal(torch.tensor([1.0, float("nan")])))
