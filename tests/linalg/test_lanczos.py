"""Lanczos' recurrence."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lapwing.ground.errors import ConfigError, ShapeError
from lapwing.linalg import Dense, Diagonal, FunctionOperator
from lapwing.linalg.lanczos import Krylov, lanczos
from lapwing.linalg.operators.base import in_float64
from tests.linalg.cases import normal, spd, spectrum


def counted(matrix: Tensor) -> tuple[FunctionOperator, list[int]]:
    columns: list[int] = []

    def product(block: Tensor) -> Tensor:
        columns.append(block.shape[1])
        return matrix @ block

    return FunctionOperator(product, product, (len(matrix), len(matrix)), matrix), columns


@pytest.mark.parametrize("reorthogonalise", [True, False])
def test_the_recurrence_holds_and_its_basis_is_orthonormal(reorthogonalise) -> None:
    matrix, start = spd(30, 1e4), normal(30, 3)
    krylov = lanczos(Dense(matrix), start, 8, reorthogonalise=reorthogonalise)
    full = lanczos(Dense(matrix), start, 8)
    torch.testing.assert_close(krylov.alpha, full.alpha, rtol=1e-6, atol=0)
    torch.testing.assert_close(krylov.length, torch.linalg.vector_norm(start, dim=0))
    assert (krylov.basis is None) != reorthogonalise
    assert full.basis is not None
    for column in range(3):
        q = full.basis[column].mT
        torch.testing.assert_close(q.mT @ q, torch.eye(8, dtype=torch.float64), atol=1e-14, rtol=0)
        torch.testing.assert_close(q[:, 0] * full.length[column], start[:, column])
        side = full.beta[column, :-1]
        tridiagonal = full.alpha[column].diag() + side.diag(1) + side.diag(-1)
        rest = matrix @ q - q @ tridiagonal
        torch.testing.assert_close(rest[:, :-1], torch.zeros(30, 7).double(), atol=1e-13, rtol=0)
        torch.testing.assert_close(torch.linalg.vector_norm(rest[:, -1]), full.beta[column, -1])


def test_a_basis_stays_orthonormal_where_ritz_values_have_converged() -> None:
    """To rounding in float64, also where the operator has float32 alone."""
    krylov = lanczos(Dense(spd(60, 1e5).float()), normal(60, 2), 60)
    assert krylov.basis is not None and krylov.steps > 40
    products = krylov.basis @ krylov.basis.mT
    torch.testing.assert_close(products, torch.eye(krylov.steps).double().expand_as(products), atol=1e-14, rtol=0)


def test_a_ritz_residual_is_that_of_its_pair() -> None:
    matrix = spd(20, 1e3)
    krylov = lanczos(Dense(matrix), normal(20), 6)
    values, vectors = krylov.ritz
    assert krylov.basis is not None
    y = krylov.basis[0].mT @ vectors[0]
    torch.testing.assert_close(
        torch.linalg.vector_norm(matrix @ y - y * values[0], dim=0), krylov.ritz_residual[0], rtol=1e-8, atol=1e-14
    )


def test_the_quadrature_is_exact_for_polynomials_of_degree_below_twice_the_steps() -> None:
    matrix, start = spd(15, 10.0), normal(15, 2)
    krylov = lanczos(Dense(matrix), start, 3)
    for degree in range(6):
        exact = (start * (torch.linalg.matrix_power(matrix, degree) @ start)).sum(0)
        torch.testing.assert_close(krylov.quadrature(lambda x, p=degree: x**p), exact)
    exact = (start * (torch.linalg.matrix_power(matrix, 6) @ start)).sum(0)
    assert (krylov.quadrature(lambda x: x**6) < exact * (1 - 1e-6)).all()


def test_exhausted_starts_stop_by_themselves_and_the_others_go_on() -> None:
    values = torch.cat([spectrum(9, 100.0), torch.full((3,), 7.0).double()])
    start = normal(12, 3)
    start[:, 1] = 0.0
    start[:9, 2] = 0.0  # an eigenvector: its space has one dimension
    operator, columns = counted(values.diag())
    krylov = lanczos(operator, start, 12)
    assert krylov.steps in (10, 11)  # ten distinct eigenvalues
    assert len(columns) == krylov.steps
    exact = (start.square() * values.log()[:, None]).sum(0)
    torch.testing.assert_close(krylov.quadrature(torch.log), exact)
    assert krylov.length[1] == 0
    assert (krylov.beta[2] == 0).all()
    assert krylov.ritz[0].min() >= values.min() - 1e-12
    for reorthogonalise in (True, False):
        one = lanczos(Diagonal(torch.full((5,), 2.0)), torch.ones(5), 4, reorthogonalise=reorthogonalise)
        assert (one.steps, one.alpha.tolist()) == (1, [[pytest.approx(2.0)]])


def test_it_can_be_stopped_on_the_way() -> None:
    seen: list[int] = []

    def until(krylov: Krylov) -> bool:
        seen.append(krylov.steps)
        return krylov.steps >= 15

    assert lanczos(Dense(spd(40, 1e4)), normal(40), 24, until=until).steps == 15
    assert seen == [*range(1, 11), 11, 13, 15]
    lanczos(Dense(spd(40, 1e4)), normal(40), 14, until=until)
    assert seen[-2:] == [13, 14]


def test_products_run_in_the_dtype_of_the_operator_and_iterates_in_float64() -> None:
    matrix, start = spd(40, 1e3), normal(40)
    single, double = lanczos(Dense(matrix.float()), start, 20), lanczos(Dense(matrix), start, 20)
    assert single.alpha.dtype == torch.float64
    assert single.basis is not None
    q = single.basis[0]
    torch.testing.assert_close(q @ q.mT, torch.eye(20).double(), atol=1e-14, rtol=0)
    torch.testing.assert_close(single.ritz[0][:, -3:], double.ritz[0][:, -3:], rtol=1e-6, atol=0)
    assert (in_float64(Dense(matrix.float())) @ start).dtype == torch.float64


def test_bad_input() -> None:
    operator, b = Dense(spd(4, 10.0)), normal(4)
    wide = FunctionOperator(lambda v: v[:2], lambda u: u, (2, 4), b)
    with pytest.raises(ShapeError, match=r"a symmetric operator \[d, d\]"):
        lanczos(wide, b, 3)
    with pytest.raises(ShapeError, match=r"a vector \[4\]"):
        lanczos(operator, normal(5), 3)
    with pytest.raises(ShapeError, match="at least one start"):
        lanczos(operator, normal(4, 0), 3)
    with pytest.raises(ConfigError, match="steps of at least 1"):
        lanczos(operator, b, 0)
