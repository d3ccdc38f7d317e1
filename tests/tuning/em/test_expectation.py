"""An expectation goes on from the last one, and keeps the data once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import lapwing as lw
from lapwing.posteriors import WeightPosterior
from lapwing.tuning.em.expectation import Expectation
from tests.tuning.em.cases import Regression

TOY = Regression()


def expectation(structure: Any, solver: Any = None) -> Expectation:
    posterior = TOY.fit(structure, lw.Isotropic(7.0))
    return Expectation(posterior, "affine", solver, 5, "auto", 1e-6, 0)


def test_the_same_precisions_again_cost_no_iterations() -> None:
    again = expectation(lw.MatrixFree(solver=lw.solvers.CG()))
    found = again.expect(again.first())
    repeated = again.expect(found.state)
    assert found.drawn is not None and repeated.drawn is not None
    assert found.drawn.iterations > 0 == repeated.drawn.iterations
    assert found.mode.iterations > 0 == repeated.mode.iterations
    assert repeated.dimensions.groups.tolist() == found.dimensions.groups.tolist()
    draws, after, noise = found.state.draws, repeated.state.draws, found.state.noise
    assert draws is not None and after is not None and noise is not None and draws.allclose(after)
    assert isinstance(again.posterior, lw.posteriors.MatrixFreePosterior)
    problem = again.posterior.problem
    solved = problem.precision.dense() @ (draws / 7.0**0.5)
    torch.testing.assert_close(solved, noise.right_hand_side(problem), rtol=1e-4, atol=1e-4)


def test_a_solver_serves_modes_and_draws() -> None:
    own, other = (
        expectation(lw.MatrixFree(solver=lw.solvers.CG(rtol=1e-3))),
        expectation(lw.MatrixFree(), lw.solvers.CG(rtol=1e-9)),
    )
    assert own.solver_used == lw.solvers.CG(rtol=1e-3) and other.solver_used == lw.solvers.CG(rtol=1e-9)
    assert expectation(lw.KFAC(), lw.solvers.CG()).solver_used == lw.solvers.CG()


def test_draws_are_off_by_the_tolerance_in_units_of_the_prior_unless_the_solver_has_its_own() -> None:
    def drawn(solver: lw.solvers.CG) -> tuple[Tensor, int]:
        made = replace(expectation(lw.MatrixFree(), solver), samples=1, rtol=0.03)
        found = made.expect(made.first())
        assert found.drawn is not None and found.state.draws is not None
        return found.state.draws, found.drawn.iterations

    (loose, few), (tight, many) = drawn(lw.solvers.CG()), drawn(lw.solvers.CG(rtol=1e-9))
    assert few < many
    error = float((loose - tight).norm()) / loose.numel() ** 0.5
    assert 1e-8 < error < 0.03


def test_a_posterior_with_its_curvature_preconditions_with_it() -> None:
    made = expectation(lw.Full(view="weights"))
    solver, network = made.solver_used, made.posterior.network
    assert isinstance(solver, lw.solvers.CG) and isinstance(made.posterior, WeightPosterior)
    problem = made.tangent.problem(network.weights, made.posterior.prior.operator(network.uncertain, network.like))
    torch.testing.assert_close(solver.preconditioner_of(problem).dense(), made.posterior.precision_operator.dense())
    assert solver.solve(problem, network.weights).iterations <= 2


def test_preconditioners_are_made_once_for_modes_and_draws() -> None:
    made = expectation(lw.MatrixFree(solver=lw.solvers.CG(preconditioner=lw.preconditioners.PivotedCholesky(3))))
    made.prepare()
    solved: Any = made.posterior
    (kept,) = solved.problem.curvature_cache.values()
    prior = solved.problem.prior
    assert list(made.tangent.problem(solved.network.weights, prior).curvature_cache.values()) == [kept]
    assert made.tangent.training is solved.problem.model
