"""The method for those who have no opinion."""

from __future__ import annotations

from dataclasses import replace

import lapwing as lw
from lapwing.jacobian.limits import Limits
from lapwing.posteriors import WeightPosterior
from lapwing.tuning.tune import default
from tests.posterior_cases import problem


def test_outputs_drawn_anew_for_each_prior_are_tuned_without_predictions() -> None:
    case = problem("categorical")
    pulled_back = case.fit(lw.Laplace(case.likelihood, structure=lw.KFAC()))
    assert isinstance(pulled_back, WeightPosterior)
    drawn = replace(pulled_back, model=replace(pulled_back.model, limits=Limits(jacobian=1)))
    assert isinstance(default(pulled_back), lw.Mixup)
    assert isinstance(default(drawn), lw.EvidenceGradient)
    assert lw.tune(drawn).log_marginal() >= drawn.log_marginal()


def test_labels_of_pixels_are_tuned_as_others_and_certain_networks_without_the_evidence() -> None:
    pixels = problem("pixels")
    assert isinstance(default(pixels.fit(lw.Laplace(pixels.likelihood, structure=lw.KFAC()))), lw.Mixup)
    values = problem("heteroscedastic")
    assert isinstance(default(values.fit(lw.Laplace(values.likelihood, structure=lw.Sampled(4)))), lw.ELBO)
