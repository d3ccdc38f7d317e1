"""Hyper-parameters from the evidence of all data, when and how far."""

from __future__ import annotations

from typing import Any

import pytest

import lapwing as lw
from lapwing.ground.errors import ConfigError
from lapwing.methods.marginal import ByEvidence, ByGradient, MarginalLikelihood
from lapwing.structures import Auto
from tests.methods.marginal.setting import case
from tests.posterior_cases import refused


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


def test_what_is_too_large_to_be_exact_is_left_to_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lapwing.methods.marginal.updates.AFFORDABLE", 1e-12)
    monkeypatch.setattr(Auto, "pick", lambda *_: lw.KFAC())
    marginal, posterior = after(1, ByEvidence(), structure=lw.KFAC())
    assert marginal.prior.precision == pytest.approx(
        lw.tune(posterior, lw.EvidenceGradient()).prior.precision, rel=1e-6
    )


def test_a_share_of_the_way_and_every_so_many_epochs() -> None:
    start, (once, _), (half, _) = 1.0, after(1, ByEvidence()), after(1, ByEvidence(share=0.5))
    target = once.prior.precision
    assert half.prior.precision == pytest.approx((start * target) ** 0.5, rel=1e-6)
    assert after(2, ByEvidence(every=3))[0].prior.precision == start
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
    with refused(ConfigError, expected="all training data", got="none", hint="end_of_epoch(loader)"):
        marginal.end_of_epoch()


@pytest.mark.parametrize(("options", "got"), [({"every": 0}, "0"), ({"share": 0.0}, "share=0.0")])
def test_options_that_make_no_sense(options: dict[str, Any], got: str) -> None:
    with refused(ConfigError, expected="", got=got, hint=""):
        ByEvidence(**options)
