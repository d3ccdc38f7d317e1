"""Exact solves by a factor, with the scale of the curvature and its prior; what it reads stays as it was."""

from __future__ import annotations

import torch

import lapwing as lw
from lapwing.ground.errors import TooLargeError
from lapwing.linalg import Dense
from lapwing.linear.problem import Problem
from tests.linear.solvers.test_cg import exact, linear_model
from tests.operators import GramMatrix
from tests.posterior_cases import normal, refused


def test_the_factor_is_of_the_scaled_curvature_and_the_prior() -> None:
    problem, b = linear_model(), normal(20, 3, seed=3)
    torch.testing.assert_close(lw.solvers.Cholesky().solve(problem, b).value, exact(problem, b))
    lower = lw.solvers.Cholesky().factor(problem)
    torch.testing.assert_close(lower @ lower.mT, problem.precision.dense())
    assert lw.solvers.Cholesky().factor(problem) is lower


def test_a_matrix_that_is_held_is_not_written_over() -> None:
    matrix = normal(20, 20) @ normal(20, 20).mT
    before, prior = matrix.clone(), linear_model().prior
    lw.solvers.Cholesky().factor(Problem(GramMatrix(Dense(matrix)), prior, 3.0))
    assert torch.equal(matrix, before)


def test_a_factor_that_needs_more_memory_is_refused() -> None:
    with refused(TooLargeError, "at most 3,199 bytes"):
        lw.solvers.Cholesky(max_bytes=20 * 20 * 8 - 1).factor(linear_model())
    assert lw.solvers.Cholesky(max_bytes=20 * 20 * 8).factor(linear_model()).shape == (20, 20)
