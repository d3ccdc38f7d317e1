"""Tuning by held-out data picks the smallest loss it saw, and every loss is that of evaluation."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import lapwing as lw
from lapwing.errors import ConfigError, DataError
from lapwing.predictive import log_predictive
from tests.posterior_cases import labels, normal, problem, refused
from tests.tuning.cases import (
    at_step,
    fit,
    held_out,
)


class TestValidation:
    @pytest.mark.parametrize("structure", ["full-weights", "full-functions", "kfac"])
    @pytest.mark.parametrize("name", ["gaussian", "categorical", "bernoulli"])
    def test_picks_the_best_it_saw(self, name: str, structure: str) -> None:
        case, posterior = fit(name, structure)
        tuned = lw.tune(posterior, lw.Validation(held_out(case)))
        losses = [step.validation_nll for step in tuned.trace]
        assert None not in losses
        assert losses[-1] == min(losses) < max(losses)
        assert lw.evaluate(tuned, held_out(case))["nll"] == pytest.approx(losses[-1], rel=1e-9)

    @pytest.mark.parametrize("name", ["gaussian-per-output", "categorical"])
    def test_every_loss_is_that_of_evaluate(self, name: str) -> None:
        """Also where labels are ignored."""
        case, posterior = fit(name)
        batches = [(x, y) for x, y in zip(*(part.split(3) for part in held_out(case)), strict=True)]
        assert name != "categorical" or any((y == -100).any() for _, y in batches)
        tuned = lw.tune(posterior, lw.Validation(batches, coarse=4, refine=2, bounds=(1e-2, 1e2)))
        for step in tuned.trace:
            assert step.validation_nll == pytest.approx(lw.evaluate(at_step(posterior, step), batches)["nll"], rel=1e-9)

    @pytest.mark.parametrize("name", ["tokens", "pixels"])
    def test_positions_count_as_examples(self, name: str) -> None:
        case, posterior = fit(name, "kfac")
        data = (case.x[:3], case.y[:3])
        tuned = lw.tune(posterior, lw.Validation(data, coarse=4, refine=2))
        assert lw.evaluate(tuned, data)["nll"] == pytest.approx(tuned.trace[-1].validation_nll, rel=1e-9)
        probs, y = tuned.predict(data[0]).probs, data[1]
        kept = y != -100
        by_hand = -probs[kept].gather(-1, y[kept][:, None]).log().mean()
        assert tuned.trace[-1].validation_nll == pytest.approx(float(by_hand), rel=1e-9)

    def test_is_close_to_the_best_of_a_fine_grid(self) -> None:
        case, posterior = fit("categorical")
        data = held_out(case)
        tuned = lw.tune(posterior, lw.Validation(data))
        fine = [posterior.with_choices(lw.Isotropic(10 ** (k / 10)), case.likelihood) for k in range(-60, 61)]
        losses = [float(-log_predictive(one.predict(data[0]), data[1]).mean()) for one in fine]
        assert tuned.trace[-1].validation_nll - min(losses) < 0.01 * (max(losses) - min(losses))

    def test_one_factor_scales_every_precision(self) -> None:
        case, posterior = fit("gaussian-per-output", prior=lw.Layerwise((0.2, 5.0)))
        tuned = lw.tune(posterior, lw.Validation(held_out(case)))
        assert isinstance(tuned.prior, lw.Layerwise) and isinstance(tuned.prior.precision, tuple)
        assert tuned.prior.precision[1] / tuned.prior.precision[0] == pytest.approx(25.0)
        noise = tuned.likelihood.precision
        assert noise[1] / noise[0] == pytest.approx(6.0) and noise[0] != 0.5

    @pytest.mark.parametrize("noise", [True, False])
    def test_measures_a_coarse_and_a_fine_grid_in_each_search(self, noise: bool) -> None:
        case, posterior = fit("gaussian")
        method = lw.Validation(held_out(case), noise=noise, coarse=5, refine=3, bounds=(1e-2, 1e2))
        tuned = lw.tune(posterior, method)
        assert len(tuned.trace) == (5 + 3 + 1) * (3 if noise else 1)
        assert [step.prior_precision[0] for step in tuned.trace[:5]] == pytest.approx([0.01, 0.1, 1, 10, 100])
        assert (tuned.likelihood == case.likelihood) is not noise

    @pytest.mark.parametrize("coarse", [2, 3, 4])
    def test_a_grid_too_coarse_does_not_undo_what_was_found(self, coarse: int) -> None:
        case, posterior = fit("gaussian")
        tuned = lw.tune(posterior, lw.Validation(held_out(case), coarse=coarse, refine=1, bounds=(1e-5, 1e6)))
        losses = [step.validation_nll for step in tuned.trace]
        assert lw.evaluate(tuned, held_out(case))["nll"] == pytest.approx(min(losses), rel=1e-9)

    @pytest.mark.parametrize("link", ["bridge", "mc"])
    def test_measures_with_the_link_of_later(self, link: Any) -> None:
        case, posterior = fit("categorical")
        tuned = lw.tune(posterior, lw.Validation(held_out(case), link=link, coarse=3, refine=1))
        assert tuned.link == link
        scores = lw.evaluate(tuned, held_out(case), generator=torch.Generator().manual_seed(0))
        assert scores["nll"] == pytest.approx(tuned.trace[-1].validation_nll, rel=1e-9)
        assert scores["nll"] != pytest.approx(lw.evaluate(tuned, held_out(case), link="qmc")["nll"], rel=1e-6)

    @pytest.mark.parametrize("name", ["poisson", "heteroscedastic"])
    def test_unlikely_precisions_do_not_stop_the_search(self, name: str) -> None:
        """Where the prior is weakest, the expected rates overflow."""
        case, posterior = fit(name)
        tuned = lw.tune(posterior, lw.Validation(held_out(case)))
        nll = lw.evaluate(tuned, held_out(case), generator=torch.Generator().manual_seed(0))["nll"]
        assert nll == pytest.approx(tuned.trace[-1].validation_nll, rel=1e-9)
        assert math.isfinite(nll)

    def test_unpacks_what_the_loader_yields(self) -> None:
        case, posterior = fit("categorical")
        x, y = held_out(case)
        plain = lw.tune(posterior, lw.Validation([(x, y)], coarse=3, refine=1))
        odd = lw.tune(
            posterior, lw.Validation([{"a": x, "b": y}], coarse=3, refine=1, unpack=lambda e: (e["a"], e["b"]))
        )
        assert odd.trace == plain.trace

    @pytest.mark.parametrize(
        "options",
        [
            {"bounds": (1.0, 1.0)},
            {"bounds": (0.0, 1.0)},
            {"bounds": (2.0, 1.0)},
            {"bounds": (1.0, math.inf)},
            {"bounds": (math.nan, 1.0)},
        ],
    )
    def test_refuses_grids_without_points(self, options: dict[str, Any]) -> None:
        name, value = next(iter(options.items()))
        with refused(ConfigError, expected="low < high", got=f"{name}={value}", hint="Validation(data)"):
            lw.Validation((normal(4, 3), normal(4, 2)), **options)

    @pytest.mark.parametrize(("name", "least"), [("coarse", 2), ("refine", 1)])
    def test_refuses_too_few_points(self, name: str, least: int) -> None:
        with refused(ConfigError, expected=f"{name} of at least {least}", got=f"{least - 1}", hint=f"{name}={least}"):
            lw.Validation((normal(4, 3), normal(4, 2)), **{name: least - 1})

    def test_refuses_data_without_a_target(self) -> None:
        _, posterior = fit("categorical")
        with refused(DataError, expected="target", got="ignored", hint="label"):
            lw.tune(posterior, lw.Validation((normal(4, 3), torch.full((4,), -100))))


def test_choices_whose_eigenvectors_differ_predict_as_each_alone() -> None:
    """One precision a weight over the dense block of a normalisation layer: nothing but the factors can be shared."""
    case = problem("images")
    prior = lw.DiagonalPrior(torch.logspace(-2, 2, 4, dtype=torch.float64))
    posterior = case.fit(lw.Laplace(case.likelihood, structure=lw.KFAC(), weights=lw.Names(("1.*",)), prior=prior))
    choices = [
        posterior.with_choices(prior.with_precisions(posterior.prior_precisions * factor), case.likelihood)
        for factor in (1.0, 1e-3, 1e3)
    ]
    for choice, outputs in zip(choices, posterior.outputs_each(case.new, choices), strict=True):
        expected = choice.predict(case.new).logits.covariance
        torch.testing.assert_close(outputs.covariance, expected, rtol=1e-8, atol=1e-12)


def test_labels_of_another_kind_are_refused() -> None:
    _, posterior = fit("categorical")
    with pytest.raises(DataError, match="labels"):
        lw.tune(posterior, lw.Validation((normal(4, 3), labels(4, classes=3) + 7)))
