"""The Gaussian linear model by products."""

from __future__ import annotations

import gc
import weakref

import torch

from lapwing.linalg import Diagonal, LowRank
from lapwing.linear.model import Matrix
from lapwing.linear.perturbation import Perturbation
from lapwing.linear.preconditioners import GivenCurvature, approximation
from lapwing.linear.problem import Problem
from tests.operators import GramMatrix, check_symmetric
from tests.posterior_cases import normal


def model() -> tuple[Problem, torch.Tensor]:
    rows, prior = normal(6, 4), torch.linspace(0.5, 2.0, 6, dtype=torch.float64)
    curvature = LowRank(rows)
    return Problem(GramMatrix(curvature), Diagonal(prior), 1.7), 1.7 * rows @ rows.mT + torch.diag(prior)


def test_the_precision_is_the_scaled_curvature_plus_the_prior() -> None:
    problem, dense = model()
    check_symmetric(problem.precision)
    torch.testing.assert_close(problem.precision.dense(), dense)


def test_perturbations_have_the_precision_as_their_covariance(generator: torch.Generator) -> None:
    problem, dense = model()
    draws = Perturbation.drawn(problem, 200_000, generator=generator).right_hand_side(problem)
    found = draws @ draws.mT / draws.shape[1]
    error = ((dense.diagonal()[:, None] * dense.diagonal() + dense.square()) / draws.shape[1]).sqrt()
    assert ((found - dense).abs() <= 5 * error).all()


def test_in_prior_units_the_prior_is_standard_normal() -> None:
    problem, dense = model()
    root = problem.prior.values.rsqrt()
    whitened = root[:, None] * (dense - torch.diag(problem.prior.values)) * root / 1.7
    torch.testing.assert_close(problem.in_prior_units().dense(), whitened)


def test_a_curvature_in_a_structure_gives_the_precision() -> None:
    problem, dense = model()
    torch.testing.assert_close(problem.with_curvature(LowRank(problem.root.dense())).dense(), dense)


def test_a_problem_is_gone_when_it_is_let_go() -> None:
    """Without waiting for the collector: preconditioners of large networks take gigabytes."""
    rows = normal(6, 4)
    problem = Problem.of(Matrix(rows), Diagonal(torch.ones(4).double()))
    assert (problem.precision @ rows.mT).shape == (4, 6)
    assert approximation(problem, GivenCurvature(LowRank(rows.mT))).shape == (4, 4)
    alive = weakref.ref(problem)
    gc.disable()
    try:
        del problem
        assert alive() is None
    finally:
        gc.enable()
