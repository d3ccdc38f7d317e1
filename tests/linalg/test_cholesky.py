"""Cholesky factors in the place of their matrix."""

from __future__ import annotations

import pytest
import torch

from lapwing.ground.errors import NumericalError
from lapwing.linalg import Dense, cholesky
from lapwing.linalg.cholesky import inverted
from tests.linalg.cases import eye, normal, spd
from tests.posterior_cases import refused


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_matrix_is_inverted_in_its_place(dtype: torch.dtype) -> None:
    matrix, block = spd(7, 10.0).to(dtype), normal(7, 3).to(dtype)
    inverse, solved, logdet = inverted(matrix.clone(), block)
    torch.testing.assert_close(inverse.triu(), matrix.inverse().triu())
    torch.testing.assert_close(solved, torch.linalg.solve(matrix, block))
    assert logdet == pytest.approx(float(matrix.logdet()), rel=1e-5)
    with refused(NumericalError, "a minor of 3 rows"):
        inverted(torch.diag(torch.tensor([1.0, 1.0, -1.0, 1.0])), normal(4, 1).float())


def test_a_large_factor_is_that_of_a_small_one() -> None:
    matrix = spd(7, 10.0)
    torch.testing.assert_close(cholesky.cholesky(matrix.clone(), large=1), matrix.cholesky())
    torch.testing.assert_close(cholesky.cholesky(matrix.float(), large=1), matrix.float().double().cholesky())
    place = matrix.clone()
    assert cholesky.cholesky(place, large=1).data_ptr() == place.data_ptr()
    with refused(NumericalError, "singular to rounding"):
        cholesky.cholesky(matrix - 40 * eye(7), large=1)


def test_an_operator_that_is_large_keeps_its_matrix() -> None:
    column = normal(cholesky.LARGE, 1)
    matrix = eye(len(column)) + column @ column.mT
    before, operator = matrix.clone(), Dense(matrix)
    solved = operator.solve(column)
    assert torch.equal(matrix, before)
    torch.testing.assert_close(solved, column / (1 + column.square().sum()))
    torch.testing.assert_close(operator.root() @ (operator.root().T @ column), matrix @ column)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_a_factor_is_of_rounding_by_the_size_of_its_matrix(scale: float) -> None:
    pivots = scale * torch.tensor([3.0, 1.0, 2e-14]).double()
    torch.testing.assert_close(cholesky.cholesky(torch.diag(pivots)), torch.diag(pivots.sqrt()))
    pivots[-1] *= 0.1
    with refused(NumericalError, "singular to rounding"):
        cholesky.cholesky(torch.diag(pivots))
