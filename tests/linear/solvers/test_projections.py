"""Alternating projections against dense solves."""

from __future__ import annotations

import torch

from lapwing.gp import KernelMatrix, Matern
from lapwing.linalg import Diagonal
from lapwing.linear.problem import Problem
from lapwing.linear.solvers import AlternatingProjections
from tests.posterior_cases import normal


def test_a_right_hand_side_of_zeros_is_solved_for_beside_another_wherever_it_starts() -> None:
    x, noise = normal(40, 3), torch.full((40,), 0.05, dtype=torch.float64)
    matrix, b = KernelMatrix(Matern(1.0), x), normal(40, 2) * torch.tensor([1.0, 0.0]).double()
    solver = AlternatingProjections(block=7, epochs=500, rtol=1e-9)
    found = solver.solve(Problem(matrix, Diagonal(noise)), b, initial=normal(40, 2, seed=1))
    assert found.converged
    expected = torch.linalg.solve(matrix.dense() + torch.diag(noise), b)
    torch.testing.assert_close(found.value, expected, rtol=1e-7, atol=1e-7)
