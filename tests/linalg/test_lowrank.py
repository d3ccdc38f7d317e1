"""Low rank plus diagonal, and Nyström factors."""

from __future__ import annotations

import pytest
import torch

from lapwing.ground.errors import NumericalError, ShapeError, TooLargeError
from lapwing.linalg import Diagonal, LowRank, nystrom
from tests.linalg.cases import normal, spd, spectrum
from tests.linalg.test_lanczos import counted


def test_without_a_base_it_has_a_root_and_no_inverse() -> None:
    factor, v = normal(5, 2), normal(5)
    operator = LowRank(factor)
    assert operator.root().shape == (5, 2)
    torch.testing.assert_close(operator.root().dense(), factor)
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


@pytest.mark.parametrize("condition", [10.0, 1e8])
def test_nystrom_is_below_the_matrix_and_near_it(condition: float, generator: torch.Generator) -> None:
    matrix = spd(70, condition)
    operator, columns = counted(matrix)
    factor = nystrom(operator, 30, generator=generator)
    assert (factor.shape, columns) == ((70, 30), [30])
    rest = torch.linalg.eigvalsh(matrix - factor @ factor.mT)
    assert rest[0] > -1e-13 * 30
    assert rest[-1] < 3 * spectrum(70, condition)[20:].sum()
    gram = factor.mT @ factor
    torch.testing.assert_close(gram, gram.diagonal().diag(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rank", [6, 25, 99])
def test_nystrom_of_a_low_rank_matrix_is_the_matrix(rank: int, dtype: torch.dtype, generator: torch.Generator) -> None:
    root = normal(40, 6)
    factor = nystrom(LowRank(root.to(dtype)), rank, generator=generator)
    assert factor.dtype == dtype
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(factor.double() @ factor.double().mT, root @ root.mT, rtol=0, atol=2000 * eps)


def test_nystrom_preconditions(generator: torch.Generator) -> None:
    values = 1e4 * torch.exp(-torch.arange(200, dtype=torch.float64) / 2)
    preconditioner = LowRank(nystrom(Diagonal(values), 50, generator=generator)).shifted(1.0)
    ratio = preconditioner.inverse_root().T @ (torch.diag(values + 1) @ preconditioner.inverse_root().dense())
    assert torch.linalg.cond(ratio) < 1.5


def test_nystrom_of_zero_and_of_indefinite_operators(generator: torch.Generator) -> None:
    assert nystrom(Diagonal(torch.zeros(5)), 3, generator=generator).tolist() == [[0.0]] * 5
    with pytest.raises(NumericalError, match=r"a positive semi-definite operator. Got uᵀAu = -"):
        nystrom(Diagonal(torch.tensor([5.0, -1.0, -2.0])), 3, generator=generator)
