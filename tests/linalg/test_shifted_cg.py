"""Conjugate gradients for many shifts."""

from __future__ import annotations

import pytest
import torch

from lapwing.ground.errors import NumericalError
from lapwing.linalg import Dense, Diagonal
from lapwing.linalg.cg import conjugate_gradients
from lapwing.linalg.minres import shifted_minres
from lapwing.linalg.shifted_cg import shifted_conjugate_gradients
from tests.linalg.cases import eye, normal, spd


@pytest.mark.parametrize("steps", [1, 3, 10])
def test_each_shift_makes_the_steps_of_conjugate_gradients(steps: int) -> None:
    matrix, b, shifts = spd(30, 1e3), normal(30), torch.tensor([0.0, 0.1]).double()
    p = Diagonal(matrix.diagonal().clone())
    solution = shifted_conjugate_gradients(Dense(matrix), b, shifts, max_iterations=steps, preconditioner=p)
    for t, value in zip(shifts, solution.value, strict=True):
        shifted = Dense(matrix + t * p.dense())
        plain = conjugate_gradients(shifted, b, max_iterations=steps, preconditioner=p)
        torch.testing.assert_close(value, plain.value, rtol=1e-8, atol=1e-8)


def test_an_indefinite_system() -> None:
    operator, b = Dense(spd(20, 100.0) - eye(20)), normal(20)
    with pytest.raises(NumericalError, match=r"A \+ t P for every shift t. Got a pivot of -.* or shifted_minres"):
        shifted_conjugate_gradients(operator, b, torch.tensor([2.0, 0.0]).double())
    assert shifted_conjugate_gradients(operator, b, torch.tensor([2.0, 1.0]).double()).converged


def test_it_converges_where_rounding_stops_minimal_residuals() -> None:
    matrix, b, shifts = spd(30, 1e8), normal(30), torch.tensor([0.0]).double()
    mine, other = (
        solver(Dense(matrix), b, shifts, max_iterations=4000).value[0]
        for solver in (shifted_conjugate_gradients, shifted_minres)
    )
    assert (b - matrix @ mine).norm() < 1.1e-6 * b.norm() < (b - matrix @ other).norm()


def test_a_pivot_that_is_rounding() -> None:
    exchange = Dense(torch.tensor([[0.0, 1.0], [1.0, 0.0]]).double())
    solution = shifted_conjugate_gradients(exchange, torch.tensor([1.0, 0.0]).double(), torch.zeros(1).double())
    assert (solution.stopped, solution.iterations) == ("breakdown", 1)
    assert (solution.value == 0).all()
    assert solution.residual.item() == 1.0
