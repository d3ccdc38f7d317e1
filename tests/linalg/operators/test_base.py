"""Operators known by their products, and what all structured ones share."""

from __future__ import annotations

import pytest
import torch

from lapwing.ground.errors import ConfigError, ShapeError, TooLargeError, UnsupportedError
from lapwing.linalg import Dense, Diagonal, FunctionOperator, Kronecker, LowRank, Structured
from lapwing.linalg.operators.base import congruence
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


OPERATORS = [
    Diagonal(torch.ones(4)),
    Dense(torch.eye(4)),
    LowRank(torch.ones(4, 1)),
    Kronecker(*[torch.eye(2)] * 2),
]


every_operator = pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: type(operator).__name__)


@every_operator
@pytest.mark.parametrize("c", [-1.0, float("nan"), float("inf"), torch.ones(4), torch.tensor(-1.0)])
def test_scaling_by_what_is_no_scale(operator: Structured, c: float | torch.Tensor) -> None:
    with pytest.raises(ConfigError, match="finite scalar c >= 0"):
        operator.scaled(c)


@every_operator
@pytest.mark.parametrize("s", [float("nan"), float("-inf"), torch.ones(1)])
def test_shifting_by_what_is_no_scalar(operator: Structured, s: float | torch.Tensor) -> None:
    with pytest.raises(ConfigError, match=r"finite scalar to shift by.*plus_diagonal"):
        operator.shifted(s)


@every_operator
def test_adding_a_diagonal_of_another_size_or_dtype(operator: Structured) -> None:
    for other in (torch.ones(3), torch.ones(4).double()):
        with pytest.raises(ShapeError, match=r"4 diagonal entries, torch.float32. Got torch.float"):
            operator.plus_diagonal(other)


@every_operator
def test_solving_for_what_does_not_fit(operator: Structured) -> None:
    with pytest.raises(ShapeError, match=r"vector \[4\].* Got shape \[2, 4\]"):
        operator.shifted(1.0).solve(torch.ones(2, 4))


@every_operator
def test_scaled_to_nothing_and_shifted(operator: Structured) -> None:
    torch.testing.assert_close(operator.scaled(0.0).shifted(2.0).solve(torch.ones(4)), torch.full((4,), 0.5))


@every_operator
def test_trace_sums_in_float64(operator: Structured) -> None:
    assert operator.trace() == 4.0
    assert operator.trace().dtype == torch.float64
    assert operator.T is operator


def test_gradients_reach_the_matrices() -> None:
    b = normal(6, 2)

    def answers(matrix: torch.Tensor, root: torch.Tensor, base: torch.Tensor) -> tuple[torch.Tensor, ...]:
        spread = Diagonal(base.exp())
        kinds = (Dense(matrix @ matrix.mT).plus_diagonal(spread.values), LowRank(root, spread), spread)
        return tuple(answer for kind in kinds for answer in (kind.logdet(), kind.solve(b), kind.inverse_root() @ b))

    point = (spd(6, 10.0), normal(6, 2, seed=1), normal(6, seed=2))
    assert torch.autograd.gradcheck(answers, tuple(x.requires_grad_() for x in point))
