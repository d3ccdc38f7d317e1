"""Draws alone give the posterior that the dense matrices give, to the accuracy of their number."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest
import torch

import lapwing as lw
from lapwing.linear.perturbation import Perturbation
from lapwing.posteriors import WeightPosterior
from lapwing.predictive import Draws, Moments
from tests.laws.test_posteriors import check_covariance, close, moments
from tests.posterior_cases import PRIORS, PROBLEMS, WEIGHTS, Problem, marginal_blocks, portrait, prior_for, problem

EXACT = lw.solvers.CG(rtol=1e-12)

COMBINATIONS = [
    *((name, "all", "layerwise") for name in PROBLEMS if name != "images"),
    *(("images", "all", prior) for prior in PRIORS),
    *(("images", weights, "g-prior") for weights in WEIGHTS if weights != "all"),
]


@cache
def case_of(name: str) -> Problem:
    return problem(name)


def whitened(posterior: lw.posteriors.SampledPosterior) -> lw.posteriors.SampledPosterior:
    """The posterior with noise of covariance Λ exactly, whatever the prior and the scale: ``√k [√s R, A^½]``."""
    root = posterior.problem.root.dense()
    eye = torch.eye(posterior.problem.size, dtype=root.dtype)
    factor = (root.shape[1] + len(eye)) ** 0.5
    data = torch.cat([factor * root, torch.zeros_like(eye)], 1)
    prior = torch.cat([torch.zeros_like(root), factor * eye], 1)
    return replace(posterior, perturbation=Perturbation(data, prior))


def both(
    name: str, weights: str = "all", prior: str = "isotropic", samples: int = 2
) -> tuple[lw.posteriors.SampledPosterior, WeightPosterior]:
    """The posterior by draws, and by dense matrices."""
    case, fitted = case_of(name), []
    for structure in (lw.Sampled(samples, EXACT), lw.Full(view="weights")):
        recipe = lw.Laplace(case.likelihood, structure=structure, weights=WEIGHTS[weights])
        usual = case.fit(recipe)
        fitted.append(usual.with_hyperparameters(prior_for(prior, usual.network.uncertain), case.likelihood))
    draws, full = fitted
    assert isinstance(draws, lw.posteriors.SampledPosterior) and isinstance(full, WeightPosterior)
    return draws, full


def check_same(mine: lw.posteriors.SampledPosterior, full: WeightPosterior, case: Problem) -> None:
    """All that two posteriors say, where the draws of one have the covariance of the other."""
    for joint in (False, True):
        ours, theirs = moments(mine, case.new, joint=joint), moments(full, case.new, joint=joint)
        close(ours.mean, theirs.mean)
        torch.testing.assert_close(ours.covariance, theirs.covariance, rtol=1e-8, atol=1e-9)
    for estimator in ("outputs", "weights"):
        assert mine.effective_dimension(estimator).value == pytest.approx(full.effective_dimension(), rel=1e-8)


def check_evidence(mine: lw.posteriors.SampledPosterior, full: WeightPosterior) -> None:
    """The evidence, where the draws of one have the covariance of the other: the quadrature's error alone is left."""
    charge = float(full.evidence.log_joint(full.prior_precisions, full.scale)) - full.log_marginal()
    assert mine.log_marginal().value == pytest.approx(full.log_marginal(), abs=2e-4 * charge + 1e-4)


@pytest.mark.parametrize(("name", "weights", "prior"), COMBINATIONS)
def test_is_the_gaussian_of_its_dense_matrices(name: str, weights: str, prior: str) -> None:
    draws, full = both(name, weights, prior)
    check_same(whitened(draws), full, case_of(name))


@pytest.mark.parametrize("factor", [0.01, 30.0])
def test_other_choices_keep_the_noise_and_are_those_of_the_dense_matrices(factor: float) -> None:
    draws, full = both("gaussian")
    exact = whitened(draws)
    assert exact.draws.shape == (full.network.size, exact.samples)
    choices = (lw.Layerwise((0.4 * factor, 3.0)), lw.Gaussian(2.5 * factor))
    moved = exact.with_hyperparameters(*choices)
    assert moved.perturbation is exact.perturbation
    full = full.with_hyperparameters(*choices)
    check_same(moved, full, case_of("gaussian"))
    check_evidence(moved, full)


def test_draws_of_weights_and_functions_have_the_posterior_covariance(generator: torch.Generator) -> None:
    draws, full = both("images", samples=1500)
    covariance = torch.linalg.inv(full.precision.operator.dense())
    check_covariance(draws.draws.mT, torch.zeros(draws.network.size), covariance)
    check_covariance(draws.sample(1500), draws.network.weights, covariance)
    x = case_of("images").new[:2]
    joint = moments(full, x, joint=True)
    functions = draws.sample_functions(x, 1500, generator=generator)
    size = joint.mean.numel()
    check_covariance(functions.flatten(1), joint.mean.flatten(), joint.covariance.reshape(size, size))


@pytest.mark.parametrize("name", ["gaussian-per-output", "images"])
def test_evidence_and_effective_dimension_cover_the_exact_ones(name: str) -> None:
    draws, full = both(name, prior="layerwise", samples=100)
    found = {estimator: draws.effective_dimension(estimator) for estimator in ("outputs", "weights", "auto")}
    for mine, theirs in (
        (draws.log_marginal(), full.log_marginal()),
        *((gamma, full.effective_dimension()) for gamma in found.values()),
    ):
        assert mine.samples == 100
        assert abs(mine.value - theirs) <= 4 * mine.stderr
        assert 0 < mine.stderr < 0.3 * abs(theirs)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_the_variance_of_each_estimator_of_the_effective_dimension(scale: float) -> None:
    """Twice the sum of γ_i² in the outputs, of (1 - γ_i)² in the weights."""
    draws, full = both("gaussian", samples=1000)
    choices = (lw.Isotropic(0.7), lw.Gaussian(2.5 * scale))
    draws, full = draws.with_hyperparameters(*choices), full.with_hyperparameters(*choices)
    eigenvalues = full.curvature.operator.eigenvalues() * scale
    gammas = eigenvalues / (eigenvalues + 0.7)
    for estimator, parts in (("outputs", gammas), ("weights", 1 - gammas)):
        error = (2 * parts.square().sum() / 1000).sqrt()
        assert draws.effective_dimension(estimator).stderr == pytest.approx(float(error), rel=0.15)
    best = "outputs" if scale < 1 else "weights"
    assert draws.effective_dimension() == draws.effective_dimension(best)


def test_predictions_of_one_draw_belong_together() -> None:
    draws, _ = both("images", samples=7)
    case, everything = case_of("images"), []
    for link in ("probit", "bridge", "mc"):
        predictive = draws.predict(case.new, link)
        logits = predictive.logits
        assert isinstance(logits, Draws if link == "mc" else Moments)
        everything.append(predictive.probs)
        torch.testing.assert_close(predictive.probs.sum(-1), torch.ones(4).double())
    values = draws.predict(case.new, "mc").logits.values
    assert values.shape == (7, 4, 3)
    close(values[:, 2:], draws.predict(case.new[2:], "mc").logits.values)
    close(values[:3], draws.predict(case.new, "mc", samples=3).logits.values)
    close(everything[2], torch.softmax(values, -1).mean(0))
    deviations = values - moments(draws, case.new).mean
    close(torch.einsum("snc,smd->ncmd", deviations, deviations) / 7, moments(draws, case.new, joint=True).covariance)
    drawn = draws.sample_functions(case.new, 7, generator=torch.Generator().manual_seed(0))
    assert all(any(torch.equal(one, other) for other in values) for one in drawn)
    again = draws.sample_functions(case.new[1:], 7, generator=torch.Generator().manual_seed(0))
    close(again, drawn[:, 1:])


def test_the_covariance_is_that_of_the_marginals_of_the_joint() -> None:
    draws, _ = both("tokens", samples=5)
    x = case_of("tokens").new
    close(moments(draws, x).covariance, marginal_blocks(moments(draws, x, joint=True).covariance))


def test_any_solver_gives_the_same_draws() -> None:
    case = case_of("images")
    found = []
    for solver in (
        EXACT,
        lw.solvers.CG(rtol=1e-10, preconditioner=lw.LowRank(5)),
        lw.solvers.SGD(epochs=2000, batch=100, rtol=1e-6),
    ):
        posterior = case.fit(lw.Laplace(case.likelihood, prior=lw.Isotropic(5.0), structure=lw.Sampled(4, solver)))
        assert isinstance(posterior, lw.posteriors.SampledPosterior)
        found.append(posterior.draws)
    for draws in found[1:]:
        torch.testing.assert_close(draws, found[0], rtol=1e-4, atol=1e-5 * math.sqrt(draws.numel()))


def test_the_module_is_left_bit_identical() -> None:
    case = case_of("images")
    before = portrait(case.model)
    posterior = case.fit(lw.Laplace(case.likelihood, structure=lw.Sampled(3)))
    posterior.predict(case.new)
    posterior.predict(case.new, linearised=False)
    posterior.sample_functions(case.new)
    posterior.log_marginal()
    assert portrait(case.model) == before
