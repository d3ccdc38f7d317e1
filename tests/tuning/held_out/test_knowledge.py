"""A scale of knowledge: error bars that stay where tuning for probabilities leaves no uncertainty."""

from __future__ import annotations

import logging
import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.ground.data.sources import Data
from lapwing.ground.errors import UnsupportedError
from lapwing.jacobian.limits import Limits
from lapwing.posteriors.knowledge import KnowledgeScale
from lapwing.predictive import Classification
from lapwing.structures.base import Structure
from lapwing.tuning.held_out.knowledge import SHARE, FamiliarLimits, factor_to_start, with_knowledge
from lapwing.tuning.method import P
from tests.posterior_cases import labels, mlp, normal, refused

X = normal(30, 3)
Y = labels(30, classes=3)
FAR = 20 * normal(40, 3, seed=5)
NEAR = normal(40, 3, seed=6)

STRUCTURES = {
    "KFAC": lw.KFAC(),
    "diagonal": lw.Diagonal(),
    "full": lw.Full(view="weights"),
    "functions": lw.Full(view="functions"),
    "Nyström": lw.Nystrom(20, samples=60),
}


def certain(structure: Structure, model: nn.Module | None = None) -> lw.Posterior:
    """A posterior so sure of its weights that predictions are those of the network."""
    recipe = lw.Laplace(lw.Categorical(), prior=lw.Isotropic(1e12), structure=structure)
    return recipe.fit(model or mlp(3), (X, Y))


def tuned(posterior: lw.Posterior) -> lw.Posterior:
    """By the evidence of no step: hyper-parameters stay, and a scale of knowledge is found."""
    return lw.tune(posterior, Kept())


def at_scale(posterior: lw.Posterior, scale: KnowledgeScale) -> lw.Posterior:
    """A posterior under the prior of a scale of knowledge, written out weight by weight."""
    layout = posterior.network.uncertain
    factors = [scale.head_factor if name in scale.head else scale.factor for name in layout.names]
    prior = lw.Layerwise(tuple(1e12 * factor for factor in factors), parts=tuple((name,) for name in layout.names))
    if not scale.head:
        prior = lw.Isotropic(1e12 * scale.factor)
    return posterior.with_hyperparameters(prior, posterior.likelihood)


class Kept:
    """Chooses what was there before."""

    def tune(self, posterior: P, progress: bool | None) -> P:
        return posterior.with_hyperparameters(posterior.prior, posterior.likelihood)


class Strongest:
    """Leaves no uncertainty, as mixtures do of a network that is right of all of them."""

    def tune(self, posterior: P, progress: bool | None) -> P:
        return posterior.with_hyperparameters(lw.Isotropic(1e12), posterior.likelihood)


def classes(posterior: lw.Posterior, x: Tensor) -> Classification:
    prediction = posterior.predict(x)
    assert isinstance(prediction, Classification)
    return prediction


@pytest.mark.parametrize("name", STRUCTURES)
def test_error_bars_stay_where_probabilities_are_those_of_the_network(name: str) -> None:
    before = certain(STRUCTURES[name])
    after = tuned(before)
    assert after.knowledge is not None and after.knowledge.certain and after.knowledge.factor < 1e-6
    prediction = classes(after, NEAR)
    torch.testing.assert_close(prediction.probs, classes(before, NEAR).probs, rtol=1e-9, atol=1e-12)
    expected = classes(at_scale(before, after.knowledge), NEAR)
    torch.testing.assert_close(prediction.known.std, expected.logits.std, rtol=1e-7, atol=1e-10)
    torch.testing.assert_close(prediction.epistemic, expected.epistemic, rtol=1e-6, atol=1e-10)
    assert float(prediction.epistemic.min()) > 1e3 * float(classes(before, NEAR).epistemic.max())


def test_the_prior_is_the_weakest_that_leaves_familiar_inputs_known() -> None:
    before = certain(lw.Full(view="weights"))
    after = tuned(before)
    assert after.knowledge is not None and not after.knowledge.head
    check_weakest(after, SHARE, lambda weaker: before.with_prior_factor(weaker * known_of(after).factor))
    familiar = after.at_knowledge.predict(X).epistemic.sort().values.float()
    torch.testing.assert_close(after.knowledge.familiar, familiar)


@pytest.mark.parametrize("structure", [lw.KFAC(), lw.Diagonal()])
def test_of_independent_layers_the_last_has_a_prior_of_its_own_and_half_of_the_share(structure: Structure) -> None:
    before = certain(structure)
    after = tuned(before)
    scale = known_of(after)
    assert scale.head == ("3.weight", "3.bias")
    check_weakest(after, SHARE / 2, lambda weaker: before.with_prior_factors(weaker * scale.factor, scale.head, 1.0))
    check_weakest(
        after, SHARE / 2, lambda weaker: before.with_prior_factors(1.0, scale.head, weaker * scale.head_factor)
    )
    familiar = after.at_knowledge.predict(X).epistemic.sort().values.float()
    torch.testing.assert_close(scale.familiar, familiar)
    precision = float(after.prior_precisions[0])
    assert f"error bars at prior precision {precision * scale.factor:.3g}" in repr(after)
    assert f"{precision * scale.head_factor:.3g} in the last layer" in repr(after)


def known_of(posterior: lw.Posterior) -> KnowledgeScale:
    assert posterior.knowledge is not None
    return posterior.knowledge


def check_weakest(after: lw.Posterior, share: float, at: Callable[[float], lw.Posterior]) -> None:
    """Familiar inputs, of which the search takes some, are known at the prior that was found, at a weaker one not."""
    bound = 1.05 * share * math.log(3)
    assert float(classes(at(1.0), X).epistemic.mean()) < bound < float(classes(at(10**-0.5), X).epistemic.mean())


@pytest.mark.parametrize(
    "prior",
    [lw.Layerwise(1e12), lw.Layerwise(1e12, parts=(("3.weight", "3.bias"),)), lw.Layerwise(1e12, parts=(("3.bias",),))],
)
def test_a_prior_by_layers_has_a_last_layer_of_its_own_unless_a_part_is_larger(prior: lw.Layerwise) -> None:
    after = tuned(lw.Laplace(lw.Categorical(), prior=prior, structure=lw.Diagonal()).fit(mlp(3), (X, Y)))
    shared = prior.parts == (("3.bias",),)
    assert known_of(after).head == (() if shared else ("3.weight", "3.bias"))


def test_a_prior_weaker_than_that_is_kept() -> None:
    posterior = lw.Laplace(lw.Categorical(), prior=lw.Isotropic(1e-8), structure=lw.KFAC()).fit(mlp(3), (X, Y))
    after = tuned(posterior)
    assert after.knowledge is not None and after.knowledge.factor == 1.0 and not after.knowledge.certain
    assert after.at_knowledge is after


def test_unfamiliar_is_the_share_of_familiar_inputs_that_are_better_known() -> None:
    after = tuned(certain(lw.KFAC()))
    prediction = classes(after, NEAR)
    familiar = classes(after.at_knowledge, X).epistemic
    expected = (familiar < prediction.epistemic[:, None]).double().mean(1)
    torch.testing.assert_close(prediction.unfamiliar, expected)
    assert float(classes(after, X).unfamiliar.mean()) == pytest.approx(29 / 60, abs=1 / 30)  # equal up to rounding


def test_held_out_inputs_are_the_familiar_ones_where_there_are_some() -> None:
    after = lw.tune(certain(lw.KFAC()), lw.Validation((NEAR, labels(40, classes=3, seed=3)), seconds=None))
    assert after.knowledge is not None and after.knowledge.held_out and len(after.knowledge.familiar) == 40
    familiar = after.at_knowledge.predict(NEAR).epistemic.sort().values.float()
    torch.testing.assert_close(after.knowledge.familiar, familiar)


def test_it_is_saved_pickled_shown_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = mlp(3)
    with caplog.at_level(logging.WARNING, "lapwing"):
        after = tuned(certain(lw.KFAC(), model))
    assert "probabilities are the network's own; error bars are at prior precision" in caplog.text
    assert "probabilities of the network, error bars at" in repr(after)
    lw.save(after, tmp_path / "p.safetensors")
    expected = classes(after, NEAR)
    restored: list[Any] = [lw.load(tmp_path / "p.safetensors", model), pickle.loads(pickle.dumps(after))]
    for again in restored:
        torch.testing.assert_close(classes(again, NEAR).unfamiliar, expected.unfamiliar)
        torch.testing.assert_close(classes(again, NEAR).epistemic, expected.epistemic)


def test_it_goes_where_the_prior_changes_and_stays_where_the_link_does() -> None:
    after = tuned(certain(lw.KFAC()))
    assert after.with_hyperparameters(lw.Isotropic(2.0), after.likelihood).knowledge is None
    assert after.with_link("probit", 2.0).knowledge is after.knowledge
    prediction = classes(after, NEAR)
    torch.testing.assert_close(classes(after.with_link("probit", 2.0), NEAR).epistemic, prediction.epistemic)


def test_joint_predictions_and_draws_have_it_too() -> None:
    after = tuned(certain(lw.KFAC()))
    expected = classes(after, NEAR).epistemic
    options: list[dict[str, Any]] = [{"joint": True}, {"link": "mc", "generator": 0}, {"linearised": False}]
    for given in options:
        torch.testing.assert_close(after.predict(NEAR, **given).epistemic, expected, rtol=1e-6, atol=1e-10)


def test_fewer_familiar_inputs_are_looked_at_where_they_take_long() -> None:
    posterior = replace(certain(lw.KFAC()), fit_seconds=0.0)
    batches = list(Data((X, Y), like=posterior.network.like))
    few = FamiliarLimits(seconds=1e-12, fewest=2)
    told = with_knowledge(posterior, batches, held_out=False, limits=few, progress=False)
    whole = with_knowledge(posterior, batches, held_out=False, progress=False)
    assert told.knowledge is not None and whole.knowledge is not None
    assert len(told.knowledge.familiar) == 4 * few.fewest
    assert len(whole.knowledge.familiar) == len(X)
    assert told.knowledge.factor < 1.0


@pytest.mark.parametrize("structure", [lw.KFAC(), lw.Full(view="weights")])
def test_halvings_that_are_decided_at_once_are_those_one_after_the_other(structure: Structure) -> None:
    posterior = certain(structure)
    batches = list(Data((X, Y), like=posterior.network.like))
    found = [
        known_of(with_knowledge(posterior, batches, held_out=False, limits=limits, progress=False))
        for limits in (FamiliarLimits(), FamiliarLimits(variances=0))
    ]
    assert found[0].factor == found[1].factor and found[0].head_factor == found[1].head_factor
    assert found[0].factor < 1.0


def test_predictions_by_draws_have_no_scale_since_each_prior_would_make_them_anew() -> None:
    posterior = certain(lw.KFAC())
    drawn = replace(posterior, model=replace(posterior.model, limits=Limits(jacobian=1)))
    batches = list(Data((X, Y), like=posterior.network.like))
    assert with_knowledge(drawn, batches, held_out=False, progress=False) is drawn
    assert tuned(drawn).knowledge is None


def test_who_has_no_scale_says_so() -> None:
    posterior = certain(lw.KFAC())
    assert posterior.predict(NEAR).knowledge is None and bool((posterior.predict(NEAR).epistemic < 1e-6).all())
    with refused(UnsupportedError, "lw.tune(posterior)"):
        _ = posterior.predict(NEAR).unfamiliar
    after = tuned(posterior)
    with refused(UnsupportedError, "looked at familiar inputs"):
        _ = after.predict(NEAR, epistemic=False).unfamiliar


def test_draws_and_real_targets_are_told_at_the_scale_that_predicts() -> None:
    drawn = tuned(lw.Laplace(lw.Categorical(), structure=lw.Sampled(6)).fit(mlp(3), (X, Y)))
    targets = X.sum(1, keepdim=True)
    real = lw.tune(lw.Laplace(lw.Gaussian(), structure=lw.KFAC()).fit(mlp(1), (X, targets)))
    for after in (drawn, real):
        assert after.knowledge is not None and after.knowledge.factor == 1.0
        prediction = after.predict(NEAR)
        assert prediction.unfamiliar.shape == (40,) and float(prediction.unfamiliar.min()) >= 0.0
        torch.testing.assert_close(prediction.known.std, prediction.latent.std)
    assert float(real.predict(FAR).unfamiliar.median()) == 1.0


@pytest.mark.parametrize("structure", [lw.Sampled(6), lw.MatrixFree()], ids=["sampled", "matrix-free"])
@pytest.mark.parametrize("held_out", [False, True], ids=["mixtures", "held-out data"])
def test_solves_that_tuning_leaves_no_uncertainty_keep_that_of_the_prior_before(
    structure: Structure, held_out: bool
) -> None:
    before = lw.Laplace(lw.Categorical(), prior=lw.Isotropic(3.0), structure=structure).fit(mlp(3), (X, Y))
    method = lw.Validation((X, before.predict(X).labels), temperature=False) if held_out else Strongest()
    after = lw.tune(before, method)
    assert float(after.prior_precisions) > 1e6 and after.knowledge is not None
    assert after.knowledge.factor * float(after.prior_precisions) == pytest.approx(3.0)
    assert float(classes(after, NEAR).epistemic.min()) > 1e3 * float(classes(after, NEAR).logits.variance.max())


def test_the_factor_back_counts_prior_precisions_over_those_of_the_noise() -> None:
    """From a millionfold on, the strongest prior that is tried; less leaves uncertainty to speak of."""
    y = normal(30, 1, seed=7)
    recipe = lw.Laplace(lw.Gaussian(2.0), prior=lw.Isotropic(3.0), structure=lw.MatrixFree())
    before = recipe.fit(mlp(1), (X, y)).with_hyperparameters(lw.Isotropic(3.0), lw.Gaussian(8.0))

    def factor(prior: float, noise: float) -> float | None:
        return factor_to_start(before, before.with_hyperparameters(lw.Isotropic(prior), lw.Gaussian(noise)))

    assert factor(3e6, 8.0) == pytest.approx(1e-6)
    assert factor(3e5, 8.0) is None and factor(3e6, 16.0) is None
    assert factor(3e6, 0.8) == pytest.approx(1e-7) and factor(3e5, 0.8) == pytest.approx(1e-6)
    exact = replace(recipe, structure=lw.Full()).fit(mlp(1), (X, y))
    assert factor_to_start(exact, exact.with_hyperparameters(lw.Isotropic(3e9), exact.likelihood)) is None


def test_held_out_data_that_do_not_reject_a_weaker_prior_give_real_targets_their_error_bars() -> None:
    """Noise alone, of which no weight knows anything: the best prior leaves no uncertainty, weaker ones are as good."""
    given, held_out = normal(30, 1, seed=7), (NEAR, normal(40, 1, seed=8))
    posterior = lw.Laplace(lw.Gaussian(), structure=lw.KFAC()).fit(mlp(1), (X, given))
    after = lw.tune(posterior, lw.Validation(held_out, seconds=None))
    assert after.knowledge is not None and after.knowledge.held_out and after.knowledge.factor < 1.0
    assert bool((after.predict(NEAR).known.std > after.predict(NEAR).latent.std).all())
    weaker = lw.evaluate(after.at_knowledge, held_out)["nll"]
    best = lw.evaluate(after, held_out)["nll"]
    error = after.trace[-1].validation_error
    assert error is not None and best < weaker < best + 3 * error
