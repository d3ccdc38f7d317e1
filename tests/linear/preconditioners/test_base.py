"""An approximation of the curvature is made once, for any prior and noise."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import lapwing as lw
from lapwing.ground.errors import ConfigError
from lapwing.linalg import Diagonal, LowRank, Structured
from lapwing.linear.preconditioners import CurvatureRecipe, Preconditioner, approximation
from lapwing.linear.problem import Problem
from lapwing.posteriors import MatrixFreePosterior
from tests.linear.preconditioners.cases import close, setting
from tests.posterior_cases import problem, refused

RECIPES = [
    lw.Diagonal(),
    lw.KFAC(),
    lw.LowRank(5),
    lw.preconditioners.PivotedCholesky(5),
    lw.preconditioners.Subsample(5),
    lw.preconditioners.RankOne(),
]


def products(name: str = "gaussian") -> Problem:
    case = problem(name)
    posterior = case.fit(lw.Laplace(case.likelihood, structure=lw.MatrixFree(lw.solvers.CG())))
    assert isinstance(posterior, MatrixFreePosterior)
    return posterior.problem


@pytest.mark.parametrize("recipe", RECIPES)
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


def test_a_recipe_that_can_change_is_refused() -> None:
    @dataclass
    class Mutable:
        def approximate(self, problem: Problem) -> Structured:
            return problem.with_curvature(LowRank(problem.root.dense()))

    with refused(ConfigError, "frozen=True"):
        approximation(setting()[0], Mutable())


@pytest.mark.parametrize(
    "recipe",
    [
        lw.Diagonal(),
        lw.KFAC(),
        lw.LowRank(500),
        lw.preconditioners.PivotedCholesky(500),
        lw.preconditioners.Subsample(10),
    ],
)
def test_noise_scales_the_curvature_and_not_the_prior(recipe: Preconditioner) -> None:
    case = problem("gaussian")
    posterior = case.fit(lw.Laplace(case.likelihood, structure=lw.MatrixFree(lw.solvers.CG())))
    noisier = posterior.with_hyperparameters(lw.Isotropic(0.3), lw.Gaussian(10.0))
    again = case.fit(lw.Laplace(lw.Gaussian(10.0), prior=lw.Isotropic(0.3), structure=lw.MatrixFree(lw.solvers.CG())))
    assert isinstance(noisier, MatrixFreePosterior) and isinstance(again, MatrixFreePosterior)
    found, expected = (recipe.approximate(it.problem).dense() for it in (noisier, again))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_is_a_preconditioner_built_once(recipe: Preconditioner) -> None:
    products, _ = setting()
    first = approximation(products, recipe)
    assert isinstance(recipe, Preconditioner)
    assert approximation(products, recipe) is first
    identity = torch.eye(products.size).double()
    close(first.solve(first @ identity), identity)


def test_priors_that_differ_are_taken_into_account() -> None:
    case = problem("images")
    posterior = case.fit(lw.Laplace(case.likelihood, structure=lw.MatrixFree(lw.solvers.CG())))
    precisions = torch.linspace(0.1, 10.0, posterior.network.size, dtype=torch.float64)
    changed = posterior.with_hyperparameters(lw.DiagonalPrior(precisions), case.likelihood)
    assert isinstance(changed, MatrixFreePosterior)
    exact = changed.precision_operator.dense()
    for recipe in (lw.LowRank(500), lw.preconditioners.PivotedCholesky(500)):
        torch.testing.assert_close(recipe.approximate(changed.problem).dense(), exact, rtol=1e-7, atol=1e-7)
