"""Precisions by their logarithms, and from the evidence of all data: when and how far."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.ground.errors import ConfigError, NumericalError
from lapwing.ground.layout import Layout
from lapwing.likelihoods import Likelihood
from lapwing.methods.marginal import ByEvidence, ByGradient, MarginalLikelihood
from lapwing.methods.marginal.hyper import LearnedHyperparameters
from lapwing.priors import Prior
from lapwing.structures import Auto, Structure
from lapwing.tuning import At
from tests.methods.marginal.setting import case
from tests.posterior_cases import normal, refused

LAYOUT = Layout(("fc.weight", "fc.bias", "out.weight"), ((2, 2), (1,), (2,)))
LIKE = torch.zeros((), dtype=torch.float64)


def hyper(prior: Prior, likelihood: Likelihood, **options: bool) -> LearnedHyperparameters:
    return LearnedHyperparameters(prior, likelihood, LAYOUT, LIKE, **options)


def test_what_goes_in_comes_out() -> None:
    made = hyper(lw.Layerwise((0.5, 2.0)), lw.Gaussian((3.0, 4.0)))
    assert made.prior.precisions(LAYOUT).tolist() == pytest.approx([0.5, 2.0])
    assert made.likelihood.precision == pytest.approx((3.0, 4.0))
    assert hyper(lw.Isotropic(), lw.Categorical()).likelihood == lw.Categorical()


def test_densities_are_those_of_prior_and_likelihood() -> None:
    made, theta = hyper(lw.Layerwise((0.5, 2.0)), lw.Gaussian((3.0, 4.0))), normal(7)
    with torch.no_grad():
        made.log_precisions += torch.tensor([0.3, -0.7])
        made.log_noise += 0.9
    f, y = normal(5, 2), normal(5, 2, seed=1)
    torch.testing.assert_close(made.nll(f, y), made.likelihood.nll(f, y).sum())
    assert made.likelihood.precision == pytest.approx((3 * math.exp(0.9), 4 * math.exp(0.9)))
    log_prior = 0.5 * (made.log_det_prior() - made.square_norm(theta) - 7 * math.log(2 * math.pi))
    torch.testing.assert_close(log_prior, made.prior.log_density(theta, LAYOUT))
    torch.testing.assert_close(made.deviations(theta), made.prior.diagonal(LAYOUT, theta).rsqrt())


def test_the_noise_is_learned_only_where_there_is_one_to_learn() -> None:
    assert hyper(lw.Isotropic(), lw.Gaussian()).log_noise.requires_grad
    assert not hyper(lw.Isotropic(), lw.Gaussian(), noise=False).log_noise.requires_grad
    assert not hyper(lw.Isotropic(), lw.Categorical()).log_noise.requires_grad


def test_moving_sets_the_noise_too_where_it_is_learned() -> None:
    made = hyper(lw.Isotropic(2.0), lw.Gaussian(3.0))
    made.move_to(lw.Isotropic(8.0), lw.Gaussian(12.0))
    assert made.prior.precisions(LAYOUT).tolist() == pytest.approx([8.0])
    assert made.likelihood.precision == pytest.approx(12.0)
    fixed = hyper(lw.Isotropic(2.0), lw.Gaussian(3.0), noise=False)
    fixed.move_to(lw.Isotropic(8.0), lw.Gaussian(12.0))
    assert fixed.likelihood == lw.Gaussian(3.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1e4, 1e4])
def test_a_logarithm_that_went_astray_gets_a_sentence(value: float) -> None:
    made = hyper(lw.Isotropic(), lw.Gaussian())
    stray: Tensor = made.log_precisions.detach()
    stray[0] = value
    with refused(NumericalError, "positive and finite"):
        assert made.prior


def after(
    epochs: int, updates: Any, warm_up: int = 0, structure: Any = None
) -> tuple[MarginalLikelihood, lw.Posterior]:
    """Epochs without a step of the weights, and the exactly tuned posterior at the same weights."""
    model, likelihood, x, y = case("gaussian")
    marginal = MarginalLikelihood(model, likelihood, data_size=6, warm_up=warm_up, settle=0, updates=updates)
    for _ in range(epochs):
        marginal.loss(x, y)
        marginal.end_of_epoch((x, y))
    recipe = lw.Laplace(likelihood, structure=lw.Full(view="weights") if structure is None else structure)
    return marginal, recipe.fit(model, (x, y))


def test_an_epoch_ends_at_the_evidence_optimum() -> None:
    marginal, posterior = after(1, ByEvidence())
    best = lw.tune(posterior, lw.EvidenceGradient())
    assert marginal.prior.precision == pytest.approx(best.prior.precision, rel=1e-6)
    assert marginal.likelihood.precision == pytest.approx(best.likelihood.precision, rel=1e-6)
    assert not any(p.requires_grad for p in marginal.hyperparameters())


def test_or_at_that_of_the_linear_models_mode() -> None:
    marginal, posterior = after(1, ByEvidence(at="mode"))
    best = lw.tune(posterior, lw.EvidenceGradient(at="mode"))
    assert marginal.prior.precision == pytest.approx(best.prior.precision, rel=1e-4)
    assert marginal.prior.precision != pytest.approx(
        lw.tune(posterior, lw.EvidenceGradient()).prior.precision, rel=1e-2
    )


def test_in_the_structure_asked_for() -> None:
    marginal, posterior = after(1, ByEvidence(structure=lw.Diagonal()), structure=lw.Diagonal())
    assert marginal.prior.precision == pytest.approx(
        lw.tune(posterior, lw.EvidenceGradient()).prior.precision, rel=1e-6
    )


@pytest.mark.parametrize(("at", "beyond"), [("weights", Auto()), ("mode", lw.KFAC())])
def test_what_is_too_large_to_be_exact_is_left_to_others(at: At, beyond: Structure) -> None:
    model, likelihood, x, y = case("gaussian")
    asked = list[Structure]()

    def fit(recipe: lw.Laplace) -> lw.Posterior:
        asked.append(recipe.structure)
        return recipe.fit(model, (x, y))

    posterior = ByEvidence(at=at)._fitted_if_affordable(lw.Laplace(likelihood), fit, max_flops=1e-12)
    full = lw.Full(view="auto" if at == "weights" else "weights", max_flops=1e-12)
    assert asked == [full, beyond]
    expected = lw.Laplace(likelihood, structure=beyond).fit(model, (x, y))
    assert posterior.log_marginal() == expected.log_marginal()


def test_every_so_many_epochs() -> None:
    target = after(1, ByEvidence())[0].prior.precision
    assert after(2, ByEvidence(every=3))[0].prior.precision == 1.0
    assert after(3, ByEvidence(every=3))[0].prior.precision == pytest.approx(target, rel=1e-6)


@pytest.mark.parametrize("updates", [ByEvidence(every=100), ByGradient()], ids=lambda x: type(x).__name__)
def test_the_first_is_at_the_end_of_the_warm_up(updates: Any) -> None:
    marginal, posterior = after(2, updates, warm_up=2)
    assert marginal.history[0].prior_precision == (1.0,)
    assert marginal.history[1].prior_precision == pytest.approx(
        (lw.tune(posterior, lw.EvidenceGradient()).prior.precision,), rel=1e-6
    )
    assert [record.warm_up for record in marginal.history] == [True, True]


def test_without_data_there_is_no_evidence() -> None:
    model, likelihood, x, y = case("gaussian")
    marginal = MarginalLikelihood(model, likelihood, data_size=6, warm_up=0)
    marginal.loss(x, y)
    with refused(ConfigError, "all training data"):
        marginal.end_of_epoch()


def test_options_that_make_no_sense() -> None:
    with refused(ConfigError, "every of at least 1"):
        ByEvidence(every=0)
