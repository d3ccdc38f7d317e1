"""A Gaussian process is the function view of a linear model: of features it says what their weights say."""

from __future__ import annotations

import math

import pytest
import torch

import lapwing as lw
from lapwing.gp import KernelMatrix
from lapwing.linalg import Diagonal
from lapwing.linear.model import Matrix
from lapwing.linear.problem import Problem
from lapwing.linear.solvers import Solver
from lapwing.predictive import JointMoments, Regression
from tests.posterior_cases import normal

PRIOR, NOISE = 0.7, 1.5
X, NEW = normal(30, 4), normal(6, 4, seed=1)
Y = X @ normal(4, 1, seed=2) + 0.3 * normal(30, 1, seed=3)

SOLVERS: list[Solver] = [
    lw.solvers.Cholesky(),
    lw.solvers.CG(rtol=1e-11),
    lw.solvers.CG(rtol=1e-11, preconditioner=lw.preconditioners.PivotedCholesky(4)),
    lw.solvers.SDD(steps=6_000, batch=10, rtol=1e-9),
    lw.solvers.AlternatingProjections(block=7, epochs=2_000, rtol=1e-9),
]


def weight_view() -> Problem:
    return Problem.of(Matrix(X, Y, lw.Gaussian(NOISE)), Diagonal(torch.full((4,), PRIOR, dtype=torch.float64)))


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_the_mean_is_that_of_the_weights(solver: Solver) -> None:
    weights = lw.solvers.Cholesky().solve(weight_view(), NOISE * X.mT @ Y).value
    process = lw.GP(lw.gp.Linear(PRIOR**0.5), lw.Gaussian(NOISE), mean="zero", solver=solver).fit((X, Y))
    torch.testing.assert_close(process.mean(NEW), NEW @ weights, rtol=1e-6, atol=1e-6)


def test_the_covariance_is_that_of_the_weights() -> None:
    process = lw.GP(lw.gp.Linear(PRIOR**0.5), lw.Gaussian(NOISE), mean="zero").fit((X, Y))
    prediction = process.predict(NEW, joint=True)
    assert isinstance(prediction, Regression) and isinstance(prediction.outputs, JointMoments)
    covariance = NEW @ lw.solvers.Cholesky().solve(weight_view(), NEW.mT.contiguous()).value
    torch.testing.assert_close(prediction.outputs.covariance[:, 0, :, 0], covariance)


def test_the_evidence_is_that_of_the_weights() -> None:
    process = lw.GP(lw.gp.Linear(PRIOR**0.5), lw.Gaussian(NOISE), mean="zero").fit((X, Y))
    problem = weight_view()
    weights = lw.solvers.Cholesky().solve(problem, NOISE * X.mT @ Y).value
    fit = NOISE * (Y - X @ weights).square().sum() + PRIOR * weights.square().sum()
    ratio = torch.logdet(problem.precision.dense() / PRIOR)
    evidence = 0.5 * (len(X) * math.log(NOISE / (2 * math.pi)) - fit - ratio)
    assert process.log_marginal() == pytest.approx(float(evidence), rel=1e-10)


def test_rows_and_products_of_a_kernel_matrix_are_those_of_the_matrix() -> None:
    x = normal(1500, 2)
    matrix = KernelMatrix(lw.gp.Matern(0.8), x)
    whole, block = matrix.dense(), normal(1500, 3, seed=1)
    assert torch.equal(whole, whole.mT)
    torch.testing.assert_close(matrix @ block, whole @ block)
    torch.testing.assert_close(matrix.rows(torch.tensor([3, 1400])), whole[[3, 1400]])
    torch.testing.assert_close(matrix.diagonal(), whole.diagonal())
    torch.testing.assert_close(
        Problem.of(Matrix(X), Diagonal(torch.ones(4).double())).curvature.rows(torch.tensor([2])), (X.mT @ X)[[2]]
    )
