"""An approximation of the curvature is made once, for any prior and noise."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import lapwing as lw
from lapwing.linalg import Diagonal, LowRank, Structured
from lapwing.linear.preconditioners import CurvatureRecipe, approximation
from lapwing.linear.problem import Problem
from lapwing.posteriors import MatrixFreePosterior
from tests.posterior_cases import problem


def products(name: str = "gaussian") -> Problem:
    case = problem(name)
    posterior = case.fit(lw.Laplace(case.likelihood, structure=lw.MatrixFree(lw.solvers.CG())))
    assert isinstance(posterior, MatrixFreePosterior)
    return posterior.problem


@pytest.mark.parametrize(
    "recipe",
    [
        lw.Diagonal(),
        lw.KFAC(),
        lw.LowRank(5),
        lw.preconditioners.PivotedCholesky(5),
        lw.preconditioners.Subsample(5),
        lw.preconditioners.RankOne(),
    ],
)
def test_with_another_prior_or_noise_only_these_are_others(recipe: CurvatureRecipe) -> None:
    before = products()
    first = approximation(before, recipe)
    after = before.with_prior(Diagonal(3.0 * before.prior.values), 2.5)
    second = approximation(after, recipe)
    assert after.curvature_cache is before.curvature_cache and list(before.curvature_cache) == [recipe]
    assert approximation(after.with_prior(Diagonal(1.0 * after.prior.values), 2.5), recipe) is second
    identity = torch.eye(before.size).double()
    curvature = first @ identity - before.prior.dense()
    torch.testing.assert_close(second @ identity, 2.5 * curvature + after.prior.dense(), rtol=1e-9, atol=1e-9)


def test_a_recipe_that_knows_only_the_whole_is_made_for_each_prior() -> None:
    @dataclass(frozen=True)
    class Whole:
        def approximate(self, problem: Problem) -> Structured:
            return problem.with_curvature(LowRank(problem.root.dense()))

    before = products()
    after = before.with_prior(Diagonal(3.0 * before.prior.values), 1.0)
    for each in (before, after):
        assert approximation(each, Whole()) is approximation(each, Whole())
        torch.testing.assert_close(approximation(each, Whole()).dense(), each.precision.dense())
    assert not before.curvature_cache
