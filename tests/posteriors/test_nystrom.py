"""The compressed posterior is the Gaussian its dense matrices say, whatever the prior is changed to."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.curvature.tangent_features import Pairs, TangentFeatures, pair_rows
from lapwing.ground.errors import NumericalError, UnsupportedError
from lapwing.linear.log_det_ratio import metric_root
from lapwing.posteriors.nystrom import Compression, distinct
from tests.laws.test_posteriors import check_covariance, close
from tests.posterior_cases import (
    PRIORS,
    WEIGHTS,
    Linearised,
    Problem,
    labels,
    marginal_blocks,
    normal,
    prior_for,
    problem,
    refused,
    seeded,
)


@cache
def fitted(
    name: str, residual: bool = True, weights: str = "all"
) -> tuple[Problem, lw.posteriors.NystromPosterior, Linearised]:
    case = problem(name)
    structure = lw.Nystrom(rank=5, samples=9, residual=residual)
    recipe = lw.Laplace(case.likelihood, prior=lw.Isotropic(0.7), structure=structure, weights=WEIGHTS[weights])
    posterior = case.fit(recipe)
    assert isinstance(posterior, lw.posteriors.NystromPosterior)
    return case, posterior, Linearised(case, posterior.network)


def dense_precision(posterior: lw.posteriors.NystromPosterior, ggn: Tensor) -> tuple[Tensor, Tensor]:
    """``Pᵀ s G P + A`` for the projection P onto the span that is orthogonal in A, and A."""
    prior = torch.diag(posterior.prior.diagonal(posterior.network.uncertain, ggn))
    w = posterior.changes
    onto = w @ torch.linalg.solve(w.mT @ prior @ w, w.mT @ prior)
    return posterior.noise_scale * onto.mT @ ggn @ onto + prior, prior


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize(
    ("name", "weights"), [("gaussian", "all"), ("images", "all"), ("images", "subnetwork"), ("tokens", "all")]
)
def test_is_the_curvature_compressed_on_the_span(name: str, weights: str, prior: str) -> None:
    case, usual, model = fitted(name, weights=weights)
    likelihood = case.likelihood.scaled(7.0)
    posterior = usual.with_hyperparameters(prior_for(prior, usual.network.uncertain), likelihood)
    precision, a = dense_precision(posterior, model.ggn)
    close(posterior.precision_operator.dense(), precision)
    joint = model.joint_covariance(precision)
    close(posterior._joint_moments(case.new).covariance, joint)
    close(posterior.outputs_each(case.new, [posterior])[0].covariance, marginal_blocks(joint))
    gamma = len(a) - float((a.diagonal() * torch.linalg.inv(precision).diagonal()).sum())
    assert posterior.effective_dimension() == pytest.approx(gamma, rel=1e-9)
    if not isinstance(case.likelihood, lw.Gaussian):
        assert posterior.log_marginal() == pytest.approx(model.log_marginal(precision, a.diagonal()), rel=1e-10)
    exact = torch.logdet(torch.eye(len(a)).double() + torch.linalg.solve(a, posterior.noise_scale * model.ggn))
    charged = posterior.evidence.complexity.log_det_ratio(posterior.prior_precisions, posterior.scale)
    assert float(charged) == pytest.approx(float(torch.logdet(precision) - torch.logdet(a)), rel=1e-9)
    assert float(charged) < float(exact) + 1e-9


@pytest.mark.parametrize("name", ["gaussian", "tokens"])
def test_without_the_residual_the_covariance_is_that_of_the_span_alone(name: str) -> None:
    case, posterior, model = fitted(name, residual=False)
    w = posterior.changes
    prior = torch.diag(posterior.prior.diagonal(posterior.network.uncertain, w))
    covariance = w @ torch.linalg.inv(w.mT @ (model.ggn + prior) @ w) @ w.mT
    rows = model.new[1].flatten(0, -2)
    joint = (rows @ covariance @ rows.mT).view(model.new[1].shape[:-1] * 2)
    close(posterior._joint_moments(case.new).covariance, joint)
    (moments,) = posterior.outputs_each(case.new, [posterior])
    close(moments.covariance, marginal_blocks(joint))
    assert moments.factor is not None and moments.factor.shape[-1] == 5
    with refused(UnsupportedError, "has an inverse"):
        posterior.precision_operator  # noqa: B018
    draws = posterior.sample(20_000, generator=torch.Generator().manual_seed(0))
    check_covariance(draws, posterior.network.weights, covariance)


@pytest.mark.parametrize("prior", ["isotropic", "diagonal"])
def test_drawn_weights_have_the_covariance_of_the_precision(prior: str, generator: torch.Generator) -> None:
    case, usual, model = fitted("images")
    posterior = usual.with_hyperparameters(prior_for(prior, usual.network.uncertain), case.likelihood)
    covariance = torch.linalg.inv(dense_precision(posterior, model.ggn)[0])
    check_covariance(posterior.sample(20_000, generator=generator), posterior.network.weights, covariance)


@pytest.mark.parametrize("residual", [True, False])
def test_choices_share_their_passes_and_answer_as_if_alone(residual: bool) -> None:
    case, posterior, _ = fitted("images", residual)
    layout = posterior.network.uncertain
    priors = [lw.Isotropic(0.1), lw.Isotropic(3.0), prior_for("layerwise", layout), prior_for("diagonal", layout)]
    choices = [posterior.with_hyperparameters(prior, case.likelihood) for prior in priors]
    together = posterior.outputs_each(case.new, choices)
    for choice, moments in zip(choices, together, strict=True):
        close(moments.covariance, choice.outputs_each(case.new, [choice])[0].covariance)


def test_multiples_of_one_variance_are_recognised() -> None:
    one, other = normal(6).exp(), normal(6, seed=1).exp()
    found, places = distinct([one, 4 * one, other, one / 3])
    assert len(found) == 2 and [place for place, _ in places] == [0, 0, 1, 0]
    assert [scale for _, scale in places] == pytest.approx([1.0, 4.0, 1.0, 1 / 3])


@pytest.mark.parametrize("method", [lw.EvidenceGradient(), lw.MacKay(), lw.ELBO(samples=4)], ids=str)
@pytest.mark.parametrize("name", ["gaussian", "categorical"])
def test_can_be_tuned(name: str, method: Any) -> None:
    _, posterior, _ = fitted(name)
    tuned = lw.tune(posterior, method)
    assert type(tuned) is type(posterior) and tuned.prior != posterior.prior
    assert torch.equal(tuned.changes, posterior.changes)
    if not isinstance(method, lw.ELBO):
        assert tuned.log_marginal() > posterior.log_marginal()


def test_validation_takes_the_scale_that_predicts_best() -> None:
    case, posterior, _ = fitted("categorical")
    tuned = lw.tune(posterior, lw.Validation((case.new, torch.tensor([0, 1, 2, 0])), link="qmc", temperature=False))
    losses = [step.validation_nll for step in tuned.trace if step.validation_nll is not None]
    assert tuned.trace[-1].validation_nll == min(losses)


def test_curvature_of_a_million_times_the_prior_leaves_finite_roots() -> None:
    rotation = torch.linalg.qr(normal(6, 6)).Q
    values = torch.logspace(-3, 8, 6, dtype=torch.float64)
    within = Compression(torch.eye(6, dtype=torch.float64), rotation @ (values[:, None] * rotation.mT))
    expected = rotation @ ((1 / (1 + values))[:, None] * rotation.mT)
    torch.testing.assert_close(within.root @ within.root.mT, expected, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("precisions", [(1e8, 1e-8), (1e12, 1e-10)])
def test_precisions_far_apart_leave_the_covariance_right(precisions: tuple[float, float]) -> None:
    changes, curvature = normal(9, 9), normal(9, 9, seed=1)
    prior = torch.tensor(precisions).double()[torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 1])]
    curvature = curvature @ curvature.mT
    within = Compression(metric_root(changes, prior), changes.mT @ curvature @ changes)
    found = changes @ within.root
    expected = torch.linalg.inv(curvature + torch.diag(prior))
    torch.testing.assert_close(found @ found.mT, expected, rtol=1e-5, atol=1e-9)


def test_curvature_whose_rounding_is_larger_than_the_prior_leaves_finite_roots() -> None:
    factor = 1e12 * normal(6, 2)
    within = Compression(torch.eye(6, dtype=torch.float64), factor @ factor.mT)
    beside = torch.eye(6, dtype=torch.float64) - factor @ torch.linalg.pinv(factor)
    torch.testing.assert_close(within.root @ within.root.mT, beside, rtol=0.0, atol=1e-8)


def test_half_precision_loses_no_more_than_its_own_digits() -> None:
    """Variances of 1e8 fit bfloat16, and are refused where float16 ends at 65504."""
    x, y, new = normal(40, 3), labels(40, classes=3), 2 * normal(5, 3, seed=2)

    def covariance(dtype: torch.dtype, precision: float) -> Tensor:
        model = seeded(lambda: nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 3))).bfloat16().to(dtype)
        recipe = lw.Laplace(lw.Categorical(), structure=lw.Nystrom(8, samples=40), prior=lw.Isotropic(precision))
        posterior = recipe.fit(model, (x.bfloat16().to(dtype), y))
        return posterior.outputs_each(new.bfloat16().to(dtype), [posterior])[0].covariance.double()

    for dtype, precision in ((torch.bfloat16, 1e-8), (torch.float16, 1e-3)):
        truth = covariance(torch.float64, precision)
        each = truth.diagonal(dim1=-2, dim2=-1)
        found = covariance(dtype, precision).diagonal(dim1=-2, dim2=-1)
        torch.testing.assert_close(found, each, rtol=0.05, atol=0.0)
    with refused(NumericalError, "fit torch.float16"):
        covariance(torch.float16, 1e-8)


@pytest.mark.parametrize("prior", [lw.Isotropic(1.0), lw.DiagonalPrior(torch.logspace(-1, 1, 82).double())])
@pytest.mark.parametrize("residual", [True, False])
def test_in_half_precision_the_span_has_more_digits_than_the_network(prior: lw.Prior, residual: bool) -> None:
    """A span of bfloat16 misses 2⁻¹⁶ of the prior's variance, a dozen times what targets leave at training inputs.

    Written out: ``J (ρ Jᵀ J + A)⁻¹ Jᵀ`` for the rows of the network as it is, of which the span has all.
    """
    x, y = normal(30, 2).bfloat16(), normal(30, 2, seed=1).bfloat16()
    model = seeded(lambda: nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))).bfloat16()
    structure = lw.Nystrom(60, samples=60, residual=residual)
    posterior: Any = lw.Laplace(lw.Gaussian(1e6), prior=prior, structure=structure).fit(model, (x, y))
    examples = torch.arange(30).repeat_interleave(2)
    pairs = Pairs(x[examples], examples, torch.arange(60) % 2)
    rows = pair_rows(posterior.model, pairs).double()
    covariance = torch.linalg.inv(1e6 * rows.mT @ rows + torch.diag(posterior.prior_diagonal))
    expected = (rows @ covariance * rows).sum(1).view(30, 2)
    found = posterior.outputs_each(x, [posterior])[0].variance.double()
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.0)
    assert posterior.changes.dtype == torch.float32 and posterior.sample(2).dtype == torch.bfloat16


def test_in_half_precision_columns_are_pushed_in_that_of_the_network() -> None:
    """Fewer columns than a fourth of the outputs."""
    x, y = normal(30, 3).bfloat16(), labels(30, classes=9)
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 9))).bfloat16()
    recipe = lw.Laplace(lw.Categorical(), structure=lw.Nystrom(2, samples=60, residual=False))
    found: Any = recipe.fit(model, (x, y))
    exact: Any = recipe.fit(copy.deepcopy(model).double(), (x.double(), y))
    assert not TangentFeatures(found.model, found.changes).by_rows
    own = found.outputs_each(x, [found])[0].variance.double()
    torch.testing.assert_close(own, exact.outputs_each(x.double(), [exact])[0].variance, rtol=0.1, atol=1e-3)


def test_what_rounding_of_the_largest_eigenvalue_hides_is_as_the_prior_has_it() -> None:
    """Three directions of a curvature of 1e18 resolve 666: one below is not known, one above is."""
    rounding = 3 * torch.finfo(torch.float64).eps * 1e18
    for value, variance in ((0.9 * rounding, 1.0), (1.1 * rounding, 1 / (1 + 1.1 * rounding))):
        curvature = torch.diag(torch.tensor([1e18, -5.0, value], dtype=torch.float64))
        root = Compression(torch.eye(3, dtype=torch.float64), curvature).root
        expected = torch.tensor([1e-18, 1.0, variance], dtype=torch.float64)
        torch.testing.assert_close((root @ root.mT).diagonal(), expected)
