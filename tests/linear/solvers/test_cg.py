"""Conjugate gradients for a problem: blocks of columns, warm starts, preconditioners."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lapwing as lw
from lapwing.ground.errors import ConfigError
from lapwing.linalg import Diagonal, LowRank
from lapwing.linear.problem import Problem
from lapwing.linear.solvers.cg import VECTORS
from tests.checker import unchecked
from tests.operators import GramMatrix
from tests.posterior_cases import normal, refused


def linear_model(d: int = 20, rows: int = 30) -> Problem:
    """A Gaussian linear model without a network."""
    curvature = LowRank(normal(d, rows))
    return Problem(GramMatrix(curvature), Diagonal(torch.linspace(0.5, 2.0, d, dtype=torch.float64)), 1.7)


def exact(problem: Problem, b: torch.Tensor) -> torch.Tensor:
    return torch.linalg.solve(problem.precision.dense(), b)


@pytest.mark.parametrize("columns", [(), (1,), (7,)])
@pytest.mark.parametrize("recipe", [None, lw.LowRank(5)])
def test_solves(columns: tuple[int, ...], recipe: lw.LowRank | None) -> None:
    problem, b = linear_model(), normal(20, *columns, seed=3)
    solution = lw.solvers.CG(rtol=1e-10, preconditioner=recipe).solve(problem, b)
    assert solution.converged and solution.residual.shape == (columns or (1,))
    assert solution.value.shape == b.shape
    torch.testing.assert_close(solution.value, exact(problem, b), rtol=1e-7, atol=1e-9)


def test_columns_that_do_not_fit_are_solved_in_turn() -> None:
    problem, b = linear_model(), normal(20, 7, seed=3)
    narrow = lw.solvers.CG(rtol=1e-10, max_bytes=3 * VECTORS * 8 * 20)
    assert narrow.width(problem) == 3
    solution = narrow.solve(problem, b)
    assert solution.residual.shape == (7,)
    assert solution.matvecs > lw.solvers.CG(rtol=1e-10).solve(problem, b).matvecs
    torch.testing.assert_close(solution.value, exact(problem, b), rtol=1e-7, atol=1e-9)


def test_one_block_that_stops_short_shows() -> None:
    problem, b = linear_model(), torch.cat([torch.zeros(20, 2).double(), normal(20, 2, seed=3)], dim=1)
    solver = lw.solvers.CG(rtol=1e-10, max_iterations=2, max_bytes=2 * VECTORS * 8 * 20)
    solution = solver.solve(problem, b)
    assert not solution.converged and solution.stopped == "iterations"
    assert solution.residual[:2].max() == 0 and solution.residual[2:].min() > 1e-10


def test_starting_at_the_solution_costs_no_iterations() -> None:
    problem, b = linear_model(), normal(20, 3, seed=3)
    cold = lw.solvers.CG(rtol=1e-8).solve(problem, b)
    warm = lw.solvers.CG(rtol=1e-8, max_bytes=2 * VECTORS * 8 * 20).solve(problem, b, initial=exact(problem, b))
    assert warm.iterations < cold.iterations / 3
    torch.testing.assert_close(warm.value, exact(problem, b), rtol=1e-7, atol=1e-9)


def test_a_preconditioner_saves_iterations() -> None:
    curvature = LowRank(normal(50, 10) * torch.logspace(0, 3, 10, dtype=torch.float64))
    problem = Problem(GramMatrix(curvature), Diagonal(torch.ones(50).double()))
    b = normal(50, seed=3)
    plain = lw.solvers.CG(rtol=1e-8).solve(problem, b)
    helped = lw.solvers.CG(rtol=1e-8, preconditioner=lw.LowRank(10)).solve(problem, b)
    assert helped.iterations <= 2 < plain.iterations


def test_bad_options() -> None:
    with refused(ConfigError, "rtol between 0 and 1"):
        lw.solvers.CG(rtol=0.0)
    words: Any = "a"
    with unchecked(), refused(ConfigError, "rtol between 0 and 1"):
        lw.solvers.CG(rtol=words)
    kind: Any = lw.LowRank
    with unchecked(), refused(ConfigError, "preconditioner="):
        lw.solvers.CG(preconditioner=kind)
    for name in ("max_iterations", "max_bytes"):
        with refused(ConfigError, f"{name} of at least 1"):
            lw.solvers.CG(**{name: 0})


def test_the_units_of_a_prior_that_knows_those_of_the_data_are_taken() -> None:
    units = torch.logspace(-4, 4, 20, dtype=torch.float64)
    curvature = LowRank(units[:, None] * normal(20, 30))
    problem = Problem(GramMatrix(curvature), Diagonal(0.3 * curvature.diagonal()))
    b = units * normal(20, seed=3)
    found = lw.solvers.CG(rtol=1e-9, max_iterations=60).solve(problem, b)
    assert found.converged
    torch.testing.assert_close(units * found.value, units * exact(problem, b), rtol=1e-6, atol=1e-6)
