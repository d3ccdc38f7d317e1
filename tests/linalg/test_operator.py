"""Operators known by their products."""

from __future__ import annotations

import pytest
import torch

from lapwing.ground.errors import ShapeError, TooLargeError, UnsupportedError
from lapwing.linalg import Dense, Diagonal, FunctionOperator
from lapwing.linalg.operator import congruence
from tests.linalg.cases import normal, spd
from tests.operators import check_adjoint, check_linear, check_matches_dense


@pytest.fixture
def tall() -> FunctionOperator:
    matrix = normal(4, 3)
    return FunctionOperator(lambda v: matrix @ v, lambda u: matrix.mT @ u, size=(4, 3), like=matrix)


def test_a_vector_gives_a_vector_and_a_block_a_block(tall: FunctionOperator) -> None:
    v = normal(3, 2)
    assert (tall @ v).shape == (4, 2)
    assert (tall @ v[:, 0]).shape == (4,)
    torch.testing.assert_close(tall @ v[:, 0], (tall @ v)[:, 0])


def test_a_rectangular_operator_obeys_its_laws(tall: FunctionOperator) -> None:
    check_linear(tall)
    check_adjoint(tall)
    check_matches_dense(tall, normal(4, 3))
    assert tall.T.shape == (3, 4)
    torch.testing.assert_close(tall.T.dense(), normal(4, 3).mT)


@pytest.mark.parametrize("shape", [(4,), (2, 3), (3, 1, 1), ()])
def test_an_operand_that_does_not_fit(tall: FunctionOperator, shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"vector \[3\] or a block of columns \[3, k\] for FunctionOperator") as error:
        tall @ torch.zeros(shape or (1, 1, 3), dtype=torch.float64)
    assert "samples lead" in str(error.value)


def test_an_operand_of_another_dtype() -> None:
    operator = Diagonal(torch.ones(3))
    for product in (operator.__matmul__, operator.solve):
        with pytest.raises(UnsupportedError, match=r"dtype torch.float32 .* Got torch.float64"):
            product(torch.ones(3, dtype=torch.float64))


def test_dense_refuses_what_is_too_large_and_names_the_bytes() -> None:
    operator = Diagonal(torch.ones(100_000))
    with pytest.raises(TooLargeError, match=r"100000 x 100000 torch.float32, which needs 40,000,000,000 bytes"):
        operator.dense()
    small = Diagonal(torch.ones(10))
    assert small.dense(max_bytes=400).shape == (10, 10)
    with pytest.raises(TooLargeError, match="at most 399 bytes"):
        small.dense(max_bytes=399)


def test_repr_shows_no_numbers(tall: FunctionOperator) -> None:
    assert repr(tall) == "FunctionOperator(4 x 3, torch.float64, cpu)"


def test_a_congruence_is_its_dense_matrix() -> None:
    matrix, w = spd(6, 10.0), normal(6, 4)
    root = FunctionOperator(lambda e: w @ e, lambda v: w.mT @ v, (6, 4), w)
    operator = congruence(Dense(matrix), root)
    torch.testing.assert_close(operator.dense(), w.mT @ matrix @ w)
    torch.testing.assert_close(operator.T.dense(), w.mT @ matrix @ w)
    with pytest.raises(ShapeError, match="a root with 6 rows"):
        congruence(Dense(matrix), root.T)
