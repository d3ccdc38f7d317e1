"""What every solver answers beside its solves: the same numbers by any, and the same solver with other limits."""

from __future__ import annotations

import pytest
import torch

import lapwing as lw
from lapwing.linear.solvers import AlternatingProjections, Contour, Perturb, PrimalSGD, Solver
from tests.linear.solvers.test_cg import linear_model
from tests.posterior_cases import normal


@pytest.mark.parametrize("solver", [lw.solvers.CG(rtol=1e-10), lw.solvers.Cholesky()])
def test_quadratic_forms_and_determinants_are_those_of_the_matrix(solver: Solver) -> None:
    problem, v = linear_model(), normal(20, 3, seed=5)
    precision = problem.precision.dense()
    expected = (v * torch.linalg.solve(precision, v)).sum(0)
    torch.testing.assert_close(solver.quadratic_forms(problem, v), expected, rtol=1e-8, atol=0.0)
    found = solver.log_determinant(problem, generator=torch.Generator().manual_seed(0))
    assert abs(found.value - float(torch.logdet(precision))) <= 4 * found.stderr + 1e-9
    assert (found.stderr == 0) == solver.exact


def test_only_a_tolerance_that_was_not_asked_for_is_loosened() -> None:
    dtype = torch.float64
    assert lw.solvers.CG().loosely(0.2, dtype) == lw.solvers.CG(rtol=0.2)
    assert (
        lw.solvers.CG().loosely(1e-12, dtype) == lw.solvers.CG(rtol=1e-6)
        and lw.solvers.CG().loosely(1e-12, torch.float32).rtol == 1e-4
    )
    for solver in (lw.solvers.CG(rtol=1e-3), lw.solvers.SGD(), lw.solvers.Cholesky()):
        assert solver.loosely(0.2, dtype) is solver


def test_limits_are_for_solvers_that_have_them() -> None:
    for kind in (lw.solvers.CG, lw.solvers.SDD):
        assert kind().within(3.0) == kind(seconds=3.0)
    for kind in (lw.solvers.CG, lw.solvers.SDD, PrimalSGD, AlternatingProjections):
        assert kind().with_progress(False) == kind(progress=False)
    exact = lw.solvers.Cholesky(max_bytes=99)
    assert exact.within(3.0) is exact and exact.with_progress(True) is exact
    assert exact.max_dense_bytes == 99 and lw.solvers.CG().max_dense_bytes is None


def test_a_mode_is_as_near_as_its_solver_s_steps_can_tell() -> None:
    assert lw.solvers.CG(rtol=0.3).mode_tolerance(torch.float64) == 1e-6
    assert lw.solvers.Cholesky().mode_tolerance(torch.float32) == 1e-4
    assert lw.solvers.SGD(rtol=0.03).mode_tolerance(torch.float64) == 0.03


def test_draws_that_fall_short_name_the_cure_of_what_made_them() -> None:
    assert (
        Perturb().cure_with(lw.solvers.CG()) == lw.solvers.CG.cure
        and Contour().cure_with(lw.solvers.CG()) == Contour.cure
    )
