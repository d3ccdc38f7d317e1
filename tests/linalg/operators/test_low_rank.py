"""Low rank plus diagonal."""

from __future__ import annotations

import pytest
import torch

from lapwing.ground.errors import NumericalError, ShapeError, TooLargeError
from lapwing.linalg import Diagonal, LowRank
from tests.linalg.cases import normal, spectrum


def test_without_a_base_it_has_a_root_and_no_inverse() -> None:
    factor, v = normal(5, 2), normal(5)
    operator = LowRank(factor)
    assert operator.root().shape == (5, 2)
    torch.testing.assert_close(operator.root().dense(), factor)
    torch.testing.assert_close(operator.root().T @ v, factor.mT @ v)
    torch.testing.assert_close(operator.diagonal(), (factor @ factor.mT).diagonal())
    torch.testing.assert_close(operator @ v, factor @ (factor.mT @ v))
    for question in (operator.logdet, operator.inverse_root, lambda: operator.solve(v)):
        with pytest.raises(NumericalError, match=r"rank 2 of 5 without a base. Try LowRank"):
            question()


@pytest.mark.parametrize("rank", [1, 4, 7])
@pytest.mark.parametrize("base", [None, 0.5])
def test_eigenvalues_with_a_constant_base(rank: int, base: float | None) -> None:
    factor = normal(4, rank)
    operator = LowRank(factor) if base is None else LowRank(factor).shifted(base)
    expected = torch.linalg.eigvalsh(factor @ factor.mT) + (base or 0.0)
    torch.testing.assert_close(operator.eigenvalues().sort().values, expected)


def test_eigenvalues_with_a_varying_base_need_the_matrix() -> None:
    factor, base = normal(4, 2), torch.arange(1.0, 5.0, dtype=torch.float64)
    expected = torch.linalg.eigvalsh(factor @ factor.mT + base.diag())
    torch.testing.assert_close(LowRank(factor, Diagonal(base)).eigenvalues(), expected)
    with pytest.raises(TooLargeError, match=r"24000 x 24000 torch.float32, which needs 2,304,000,000 bytes"):
        LowRank(torch.ones(24_000, 1), Diagonal(torch.arange(1.0, 24_001.0))).eigenvalues()


def test_a_large_operator_costs_what_its_factor_costs() -> None:
    d = 200_000
    operator = LowRank(normal(d, 3), Diagonal(spectrum(d, 1e4)))
    v = normal(d, 1)
    torch.testing.assert_close(operator.solve(operator @ v), v, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(operator.root() @ (operator.root().T @ v), operator @ v)
    assert operator.logdet() > Diagonal(spectrum(d, 1e4)).logdet()


def test_dominant_and_vanishing_directions() -> None:
    factor = torch.linalg.qr(normal(6, 3)).Q * torch.tensor([1e4, 1.0, 1e-12]).double()
    operator, v = LowRank(factor).shifted(1.0), normal(6)
    torch.testing.assert_close(operator.solve(operator @ v), v, rtol=1e-7, atol=1e-7)
    assert operator.logdet().item() == pytest.approx(torch.tensor([1e8 + 1, 2.0]).double().log().sum().item())


def test_a_base_that_is_not_positive() -> None:
    operator = LowRank(normal(3, 1), Diagonal(torch.tensor([1.0, 0.0, 2.0]).double()))
    with pytest.raises(NumericalError, match="smallest eigenvalue 0"):
        operator.logdet()


def test_what_does_not_fit() -> None:
    with pytest.raises(ShapeError, match=r"a factor \[d, r\].* Try u\[:, None\]"):
        LowRank(torch.ones(3))
    with pytest.raises(ShapeError, match="a base like LowRank"):
        LowRank(torch.ones(3, 1), Diagonal(torch.ones(4)))
    with pytest.raises(ShapeError, match=r"Got Diagonal.3 x 3, torch.float64"):
        LowRank(torch.ones(3, 1), Diagonal(torch.ones(3).double()))


def test_a_factor_with_nan() -> None:
    operator = LowRank(torch.full((3, 1), float("nan"))).shifted(1.0)
    for question in (operator.logdet, operator.eigenvalues):
        with pytest.raises(NumericalError, match="3 of 3 entries NaN"):
            question()


@pytest.mark.parametrize("base", [None, 1.5])
def test_sums_of_scaled_and_shifted_copies(base: float | None) -> None:
    one, other = LowRank(normal(5, 2)), LowRank(normal(5, 4, seed=1))
    other = other if base is None else other.shifted(base)
    for scaled in (one.scaled(2.0), one.shifted(0.0), one.scaled(2.0).shifted(0.25)):
        total = scaled.plus(other)
        assert isinstance(total, LowRank) and total.factor.shape == (5, 5)
        torch.testing.assert_close(total.dense(), scaled.dense() + other.dense())
