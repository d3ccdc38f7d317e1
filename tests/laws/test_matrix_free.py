"""Products alone give the posterior that the dense matrices give."""

from __future__ import annotations

from functools import cache
from itertools import cycle, product

import pytest
import torch

import lapwing as lw
from lapwing.posteriors import MatrixFreePosterior, WeightPosterior
from lapwing.predictive import Moments
from tests.laws.test_posteriors import check_covariance, close, linearised, moments
from tests.operators import check_adjoint, check_matches_dense, check_symmetric
from tests.pairwise import in_turn
from tests.posterior_cases import PRIORS, PROBLEMS, WEIGHTS, Problem, portrait, prior_for, problem

SOLVERS = {
    "plain": lw.solvers.CG(rtol=1e-12),
    "diagonal": lw.solvers.CG(rtol=1e-12, preconditioner=lw.Diagonal()),
    "kfac": lw.solvers.CG(rtol=1e-12, preconditioner=lw.KFAC()),
    "low-rank": lw.solvers.CG(rtol=1e-12, preconditioner=lw.LowRank(5)),
    "pivoted": lw.solvers.CG(rtol=1e-12, preconditioner=lw.preconditioners.PivotedCholesky(5)),
    "random-pivots": lw.solvers.CG(
        rtol=1e-12, preconditioner=lw.preconditioners.PivotedCholesky(5, pivots="random", block=2)
    ),
    "subsample": lw.solvers.CG(rtol=1e-12, preconditioner=lw.preconditioners.Subsample(4)),
    "rank-one": lw.solvers.CG(rtol=1e-12, preconditioner=lw.preconditioners.RankOne()),
}


@cache
def case_of(name: str) -> Problem:
    return problem(name)


def both(
    name: str, weights: str = "all", prior: str = "isotropic", **options: object
) -> tuple[MatrixFreePosterior, WeightPosterior]:
    """The posterior by products, and by dense matrices."""
    case = case_of(name)
    fitted = []
    for structure in (lw.MatrixFree(lw.solvers.CG(rtol=1e-12)), lw.Full(view="weights")):
        recipe = lw.Laplace(case.likelihood, structure=structure, weights=WEIGHTS[weights])
        usual = case.fit(recipe)
        fitted.append(usual.with_hyperparameters(prior_for(prior, usual.network.uncertain), case.likelihood))
    free, full = fitted
    assert isinstance(free, MatrixFreePosterior) and isinstance(full, WeightPosterior)
    return free, full


CHOICES = [(name, *row) for row, name in zip(product(WEIGHTS, PRIORS), cycle(PROBLEMS), strict=False)]
"""Every pair of weights and prior, on one problem after the other."""


@pytest.mark.parametrize("choices", CHOICES, ids=",".join)
def test_is_the_gaussian_of_its_dense_matrices(choices: tuple[str, str, str]) -> None:
    free, full = both(*choices)
    case = case_of(choices[0])
    dense = full.precision.operator.dense()
    check_symmetric(free.precision_operator)
    check_matches_dense(free.precision_operator, dense, tolerance=1e-11)
    check_adjoint(free.problem.root)
    root = free.problem.root.dense()
    close(root @ root.mT, linearised(*choices[:2]).ggn)
    for joint in (False, True):
        mine, theirs = moments(free, case.new, joint=joint), moments(full, case.new, joint=joint)
        close(mine.mean, theirs.mean)
        close(mine.covariance, theirs.covariance)


@pytest.mark.parametrize(("solver", "name"), in_turn(SOLVERS, ("images", "gaussian"), whole=("diagonal", "kfac")))
def test_the_preconditioner_does_not_change_the_answer(solver: str, name: str) -> None:
    case = case_of(name)
    recipe = lw.Laplace(case.likelihood, prior=lw.Isotropic(0.7))
    full = case.fit(lw.Laplace(recipe.likelihood, prior=recipe.prior, structure=lw.Full(view="weights")))
    free = case.fit(lw.Laplace(recipe.likelihood, prior=recipe.prior, structure=lw.MatrixFree(SOLVERS[solver])))
    mine, theirs = moments(free, case.new), moments(full, case.new)
    assert isinstance(mine, Moments)
    torch.testing.assert_close(mine.covariance, theirs.covariance, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    "sqrt", [lw.solvers.Perturb(), lw.solvers.Contour(points=12, rtol=1e-8), lw.solvers.Lanczos(steps=60, rtol=1e-8)]
)
def test_draws_have_the_posterior_covariance(sqrt: lw.solvers.Perturb, generator: torch.Generator) -> None:
    case = case_of("images")
    structure = lw.MatrixFree(lw.solvers.CG(rtol=1e-8), sqrt=sqrt)
    free = case.fit(lw.Laplace(case.likelihood, prior=lw.Isotropic(0.7), structure=structure))
    full = case.fit(lw.Laplace(case.likelihood, prior=lw.Isotropic(0.7), structure=lw.Full(view="weights")))
    assert isinstance(free, MatrixFreePosterior) and isinstance(full, WeightPosterior)
    draws = free.sample(1000, generator=generator)
    check_covariance(draws, free.network.weights, torch.linalg.inv(full.precision.operator.dense()))


def test_a_preconditioned_contour_draws_from_the_posterior(generator: torch.Generator) -> None:
    case = case_of("images")
    sqrt = lw.solvers.Contour(points=12, rtol=1e-8, preconditioner=lw.LowRank(5))
    free = case.fit(lw.Laplace(case.likelihood, structure=lw.MatrixFree(sqrt=sqrt)))
    assert isinstance(free, MatrixFreePosterior)
    draws = free.sample(1000, generator=generator)
    check_covariance(draws, free.network.weights, torch.linalg.inv(free.precision_operator.dense()))


@pytest.mark.parametrize("name", ["gaussian-per-output", "images", "tokens"])
def test_evidence_and_effective_dimension_cover_the_exact_ones(name: str, generator: torch.Generator) -> None:
    free, full = both(name, prior="layerwise")
    for mine, theirs in (
        (free.log_marginal(200, generator=generator), full.log_marginal()),
        (free.effective_dimension(200, generator=generator), full.effective_dimension()),
    ):
        assert mine.samples == 200
        assert abs(mine.value - theirs) <= 4 * mine.stderr
        assert 0 < mine.stderr < 0.1 * abs(theirs)


def test_the_evidence_is_exact_but_for_its_log_determinant() -> None:
    free, full = both("gaussian", prior="layerwise")
    noisier = lw.Gaussian(7.0)
    changed = free.with_hyperparameters(free.prior, noisier), full.with_hyperparameters(full.prior, noisier)
    for posterior, exact in ((free, full), changed):
        log_det = posterior.log_det(20, generator=torch.Generator().manual_seed(0))
        estimate = posterior.log_marginal(20, generator=torch.Generator().manual_seed(0))
        off = log_det.value - float(exact.precision.operator.logdet())
        assert estimate.value == pytest.approx(exact.log_marginal() - 0.5 * off, rel=1e-9)
        assert estimate.stderr == pytest.approx(0.5 * log_det.stderr)


def test_other_noise_scales_the_curvature() -> None:
    free, full = both("gaussian")
    case, noisier = case_of("gaussian"), lw.Gaussian(25.0)
    mine, theirs = free.with_hyperparameters(free.prior, noisier), full.with_hyperparameters(full.prior, noisier)
    close(moments(mine, case.new).covariance, moments(theirs, case.new).covariance)
    gamma = mine.effective_dimension(400, generator=torch.Generator().manual_seed(0))
    assert abs(gamma.value - theirs.effective_dimension()) <= 4 * gamma.stderr
    assert abs(gamma.value - full.effective_dimension()) > 8 * gamma.stderr


def test_the_module_is_left_bit_identical() -> None:
    case = case_of("images")
    before = portrait(case.model)
    posterior = case.fit(lw.Laplace(case.likelihood, structure=lw.MatrixFree(lw.solvers.CG(preconditioner=lw.KFAC()))))
    posterior.predict(case.new)
    posterior.predict(case.new, linearised=False, samples=2)
    posterior.log_marginal()
    assert portrait(case.model) == before
