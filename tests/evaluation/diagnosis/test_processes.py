"""Functions drawn from a Gaussian process pass the tests of draws; functions of too few features do not."""

from __future__ import annotations

import pytest
import torch

import lapwing as lw
from lapwing.gp import GPPosterior
from lapwing.linear.solvers import Solver
from tests.posterior_cases import normal

X = normal(60, 2)
Y = torch.stack([X[:, 0].sin(), X.prod(1)], 1) + 0.1 * normal(60, 2, seed=1)


def fitted(features: int = 2000, solver: Solver | None = None) -> GPPosterior:
    recipe = lw.GP(lw.gp.Matern(0.8), lw.Gaussian(100.0), features=features, solver=solver or "auto")
    return recipe.fit((X, Y))


@pytest.mark.parametrize("inputs", [None, 2 * normal(30, 2, seed=2)])
@pytest.mark.parametrize("solver", [lw.solvers.Cholesky(), lw.solvers.CG(rtol=1e-6)], ids=["Cholesky", "CG"])
def test_functions_pass_the_tests_of_draws(solver: Solver, inputs: torch.Tensor | None) -> None:
    diagnosis = lw.diagnose(fitted(solver=solver), 150, inputs=inputs, generator=torch.Generator().manual_seed(0))
    assert diagnosis.passed, str(diagnosis)
    again = lw.diagnose(fitted(solver=solver), 150, inputs=inputs, generator=0)
    assert torch.equal(again.distances, diagnosis.distances)
    assert len(diagnosis.distances) == 150 and diagnosis.dimension == 2 * (60 if inputs is None else 30)


def test_functions_of_few_features_are_told() -> None:
    inputs = 2 * normal(30, 2, seed=2)
    diagnosis = lw.diagnose(fitted(features=20), 150, inputs=inputs, generator=torch.Generator().manual_seed(0))
    assert not diagnosis.passed


def test_functions_of_loose_solves_are_told() -> None:
    with pytest.warns(lw.ConvergenceWarning):
        diagnosis = lw.diagnose(
            fitted(solver=lw.solvers.SDD(steps=20, batch=8)), 150, generator=torch.Generator().manual_seed(0)
        )
    assert not diagnosis.passed
