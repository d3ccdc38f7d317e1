"""More data, densities of weights, Jacobians of one's own and derivatives of the evidence, in every structure."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch.func import functional_call, jacrev

import lapwing as lw
from lapwing.ground.errors import ShapeError, UnsupportedError
from lapwing.posteriors import WeightPosterior
from tests.pairwise import in_turn
from tests.posterior_cases import STRUCTURES, normal, problem, refused

EVERY = {**STRUCTURES, "sampled": lw.Sampled(4, lw.solvers.CG(rtol=1e-12)), "matrix-free": lw.MatrixFree()}
OVER_WEIGHTS = ["full-weights", "diagonal", "kfac", "kfac-reduce-separate", "kfac-corrected", "low-rank"]


def recipe_of(name: str, structure: str) -> lw.Laplace:
    return lw.Laplace(problem(name).likelihood, prior=lw.Isotropic(0.7), structure=EVERY[structure])


@cache
def fitted(name: str, structure: str) -> Any:
    case = problem(name)
    return recipe_of(name, structure).fit(case.model, (case.x, case.y))


SUMS = [one for one in EVERY if one != "kfac-corrected"]

CONVOLUTIONS = [(one, "images") for one in ("kfac", "kfac-reduce-separate", "diagonal", "tridiagonal")]


@pytest.mark.parametrize(
    ("structure", "name"), in_turn(SUMS, ("gaussian", "categorical"), whole=("kfac", "sampled")) + CONVOLUTIONS
)
def test_more_data_are_those_of_a_fit_to_all(structure: str, name: str) -> None:
    case = problem(name)
    recipe = recipe_of(name, structure)
    part = recipe.fit(case.model, (case.x[:4], case.y[:4]))
    found: Any = part.updated([(case.x[4:7], case.y[4:7]), (case.x[7:], case.y[7:])])
    whole = fitted(name, structure)
    if structure not in ("matrix-free", "sampled"):
        assert found.log_marginal() == pytest.approx(whole.log_marginal(), rel=1e-9)
    assert found.totals.examples == 10 and found.data.examples == 10
    there, here = found.predict(case.new).latent, whole.predict(case.new).latent
    torch.testing.assert_close(there.mean, here.mean, rtol=1e-9, atol=1e-12)
    if structure != "sampled":  # whose noise is drawn for the data that it has
        torch.testing.assert_close(there.covariance, here.covariance, rtol=1e-7, atol=1e-10)


def test_corrected_eigenvalues_of_more_data_keep_the_trace() -> None:
    case = problem("images")
    recipe = lw.Laplace(case.likelihood, structure=lw.EKFAC())
    found, whole = (
        recipe.fit(case.model, (case.x[:4], case.y[:4])).updated((case.x[4:], case.y[4:])),
        recipe.fit(case.model, (case.x, case.y)),
    )
    assert isinstance(found, WeightPosterior) and isinstance(whole, WeightPosterior)
    torch.testing.assert_close(found.curvature.operator.trace(), whole.curvature.operator.trace())


def test_fewer_new_data_than_weights_are_added_to_a_posterior_over_weights() -> None:
    """``Full()`` holds the new ones alone as functions, all of them as weights."""
    model = torch.nn.Linear(2, 1).double()
    x, y = normal(8, 2), normal(8, 1, seed=1)
    part = lw.Laplace(lw.StudentT(), structure=lw.Full()).fit(model, (x[:6], y[:6]))
    found = part.updated((x[6:], y[6:]))
    whole = lw.Laplace(lw.StudentT(), structure=lw.Full()).fit(model, (x, y))
    assert isinstance(part, WeightPosterior) and isinstance(found, WeightPosterior)
    assert found.log_marginal() == pytest.approx(whole.log_marginal(), rel=1e-10)
    torch.testing.assert_close(found.predict(x).latent.std, whole.predict(x).latent.std)


def test_what_was_tuned_is_kept() -> None:
    case = problem("gaussian")
    part = lw.tune(recipe_of("gaussian", "full-weights").fit(case.model, (case.x[:6], case.y[:6])))
    found = part.updated((case.x[6:], case.y[6:]))
    assert found.prior == part.prior and found.likelihood == part.likelihood and found.trace == part.trace
    whole = fitted("gaussian", "full-weights").with_hyperparameters(part.prior, part.likelihood)
    assert found.log_marginal() == pytest.approx(whole.log_marginal(), rel=1e-10)
    assert found.mode_shift is not None


def test_more_data_after_a_posterior_from_a_file(tmp_path: Any) -> None:
    case = problem("categorical")
    part = recipe_of("categorical", "kfac").fit(case.model, (case.x[:4], case.y[:4]))
    lw.save(part, tmp_path / "part.safetensors")
    loaded = lw.load(tmp_path / "part.safetensors", case.model)
    found = loaded.updated((case.x[4:], case.y[4:]))
    assert found.log_marginal() == pytest.approx(fitted("categorical", "kfac").log_marginal(), rel=1e-9)
    with refused(UnsupportedError, "a posterior made by Laplace(...).fit"):
        replace(loaded, fitted_by=None).updated((case.x[4:], case.y[4:]))


@pytest.mark.parametrize("structure", OVER_WEIGHTS)
def test_the_density_of_weights_is_that_of_a_dense_normal(structure: str) -> None:
    posterior = fitted("categorical", structure)
    draws = posterior.sample(3, generator=0)
    covariance = torch.linalg.inv(posterior.precision_operator.dense())
    normal_of = multivariate_normal(posterior.network.weights.numpy(), (covariance + covariance.mT).numpy() / 2)
    np.testing.assert_allclose(posterior.log_prob(draws).numpy(), normal_of.logpdf(draws.numpy()), rtol=1e-9)
    assert posterior.log_prob(draws[1]).shape == ()
    draws.requires_grad_()
    posterior.log_prob(draws).sum().backward()
    expected = -(draws.detach() - posterior.network.weights) @ posterior.precision_operator.dense()
    torch.testing.assert_close(draws.grad, expected)
    with refused(ShapeError, "weights [31] or [s, 31]"):
        posterior.log_prob(draws[:, :5])


@pytest.mark.parametrize("structure", [*OVER_WEIGHTS, "nystrom", "matrix-free"])
def test_a_jacobian_of_ones_own_has_its_variance(structure: str) -> None:
    case, posterior = problem("categorical"), fitted("categorical", structure)
    network = posterior.network

    def hidden(params: Any) -> torch.Tensor:
        return functional_call(case.model.eval(), {**network.params, **params}, (case.new,)).square()

    by_name = jacrev(hidden)(dict(network.params))
    found = posterior.functional_variance(by_name)
    flat = torch.cat([by_name[name].flatten(2) for name in network.names], 2)
    torch.testing.assert_close(posterior.functional_variance(flat), found)
    if structure in OVER_WEIGHTS:
        covariance = torch.linalg.inv(posterior.precision_operator.dense())
        torch.testing.assert_close(found, flat @ covariance @ flat.mT)
    own = torch.func.jacrev(lambda params: functional_call(case.model, {**network.params, **params}, (case.new,)))
    of_outputs = posterior.functional_variance(own(dict(network.params)))
    torch.testing.assert_close(of_outputs, posterior.predict(case.new).latent.covariance, rtol=1e-7, atol=1e-10)


def test_a_jacobian_of_other_weights_is_refused() -> None:
    posterior = fitted("categorical", "kfac")
    with refused(ShapeError, "a Jacobian [n, c, 31]. Got [2, 1, 30]"):
        posterior.functional_variance(torch.zeros(2, 1, 30))
    with refused(ShapeError, "Got none in '0.bias'"):
        posterior.functional_variance({"0.weight": torch.zeros(2, 1, 4, 3)})


@pytest.mark.parametrize(
    ("structure", "prior"), in_turn(STRUCTURES, (lw.Layerwise((0.4, 1.3)), lw.Isotropic(0.7)), whole=("kfac",))
)
def test_the_evidence_is_differentiable_in_prior_and_noise(structure: str, prior: lw.Prior) -> None:
    case = problem("gaussian")
    posterior = lw.Laplace(case.likelihood, prior=prior, structure=STRUCTURES[structure]).fit(
        case.model, (case.x, case.y)
    )
    evidence = posterior.evidence
    assert evidence is not None
    logs = torch.cat([posterior.prior_precisions, torch.tensor([1.4], dtype=torch.float64)]).log()

    def height(values: torch.Tensor) -> torch.Tensor:
        return evidence.log_marginal(values[:-1].exp(), values[-1].exp())

    logs.requires_grad_()
    (gradient,) = torch.autograd.grad(height(logs), logs)
    step = 1e-4 * normal(len(logs), seed=7)
    with torch.no_grad():
        slope = float(height(logs + step) - height(logs - step)) / 2
    assert float(gradient @ step) == pytest.approx(slope, rel=1e-6)
