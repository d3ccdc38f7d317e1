"""Functions of a matrix, applied to vectors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lapwing.ground.errors import ConfigError, NumericalError, UnsupportedError
from lapwing.linalg import Dense, Diagonal
from lapwing.linalg.matrix_functions import apply_function
from tests.linalg.cases import normal, spd
from tests.linalg.test_lanczos import counted
from tests.meter import Meter


def function_of(matrix: Tensor, function) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return vectors @ torch.diag(function(values)) @ vectors.mT


@pytest.mark.parametrize("condition", [1.0, 1e2, 1e4, 1e6])
@pytest.mark.parametrize("function", [torch.rsqrt, torch.sqrt, torch.log, torch.exp])
def test_functions_of_a_matrix(condition: float, function) -> None:
    matrix, b = spd(50, condition), normal(50, 2)
    solution = apply_function(Dense(matrix), b, function, rtol=1e-10)
    exact = function_of(matrix, function) @ b
    error = torch.linalg.vector_norm(solution.value - exact, dim=0) / torch.linalg.vector_norm(exact, dim=0)
    assert solution.converged
    assert (error < 1e-9).all()
    assert solution.matvecs == 2 * solution.iterations


def test_a_function_that_ran_out_of_steps_says_how_far_it_got() -> None:
    matrix, b = spd(200, 1e4), normal(200)
    exact = function_of(matrix, torch.rsqrt) @ b
    for steps in (1, 5, 40):
        solution = apply_function(Dense(matrix), b, torch.rsqrt, steps=steps, rtol=1e-12)
        error = torch.linalg.vector_norm(solution.value - exact) / torch.linalg.vector_norm(exact)
        assert (solution.stopped, solution.iterations, solution.value.shape) == ("iterations", steps, b.shape)
        assert 0.3 * error < solution.residual[0]


def test_columns_whose_bases_do_not_fit_take_turns() -> None:
    """Each column gets what it gets beside all others; memory that of two columns."""
    matrix, b = spd(300, 1e3), normal(300, 5)
    operator, columns = counted(matrix)
    with Meter() as meter:
        solution = apply_function(operator, b, torch.rsqrt, steps=60, rtol=1e-14, max_bytes=2 * 8 * 300 * 60)
    assert (max(columns), solution.matvecs, solution.iterations) == (2, sum(columns), 60)
    assert meter.most < 4 * 8 * 300 * 60
    exact = [apply_function(Dense(matrix), column, torch.rsqrt, steps=60, rtol=1e-14) for column in b.unbind(1)]
    torch.testing.assert_close(solution.value, torch.stack([one.value for one in exact], 1), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(solution.residual, torch.cat([one.residual for one in exact]), rtol=1e-6, atol=1e-14)


def test_functions_of_zero_and_of_float32() -> None:
    matrix, b = spd(20, 100.0), normal(20, 2)
    b[:, 1] = 0.0
    solution = apply_function(Dense(matrix.float()), b.float(), torch.sqrt)
    assert solution.value.dtype == torch.float32
    assert solution.residual[1] == 0
    torch.testing.assert_close(solution.value.double(), function_of(matrix, torch.sqrt) @ b, rtol=1e-4, atol=1e-4)


def test_bad_input_of_a_function() -> None:
    operator, b = Dense(spd(4, 10.0)), normal(4)
    with pytest.raises(ConfigError, match="a positive rtol"):
        apply_function(operator, b, torch.sqrt, rtol=0.0)
    with pytest.raises(UnsupportedError, match="float64"):
        apply_function(operator, b.float(), torch.sqrt)
    with pytest.raises(NumericalError, match="finite numbers"):
        apply_function(Diagonal(torch.tensor([1.0, float("nan")])), torch.ones(2), torch.sqrt)
    with pytest.raises(NumericalError, match=r"finite on the spectrum.*positive definite"):
        apply_function(Diagonal(torch.tensor([-1.0, 1.0, 2.0])), torch.ones(3), torch.log)
