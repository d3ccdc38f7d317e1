"""What every posterior answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import lapwing as lw
from lapwing.ground.errors import ConfigError, DataError, ShapeError, TooLargeError, UnsupportedError
from lapwing.posteriors import Step
from lapwing.posteriors.base import JOINT
from lapwing.predictive import (
    Classification,
    Counts,
    Draws,
    HeavyTailedRegression,
    JointMoments,
    Moments,
    MultiLabel,
    OverdispersedCounts,
    Regression,
)
from tests.checker import unchecked
from tests.meter import Meter
from tests.pairwise import in_turn
from tests.posterior_cases import PROBLEMS, STRUCTURES, Problem, labels, limited, normal, problem, refused, seeded

every_structure = pytest.mark.parametrize("structure", STRUCTURES)


def fit(name: str, structure: str = "full-weights", **options: Any) -> tuple[Problem, lw.Posterior]:
    case = problem(name)
    return case, case.fit(lw.Laplace(case.likelihood, structure=STRUCTURES[structure], **options))


class TestPredict:
    @pytest.mark.parametrize("name", PROBLEMS)
    def test_has_the_kind_and_shape_of_the_likelihood(self, name: str) -> None:
        case, posterior = fit(name)
        prediction = posterior.predict(case.new)
        shape = {"tokens": (3, 4, 3), "pixels": (2, 3, 2, 3)}.get(name, (4, 2) if case.y.ndim == 2 else (4, 3))
        match name:
            case "gaussian" | "gaussian-per-output" | "heteroscedastic":
                assert isinstance(prediction, Regression) and prediction.mean.shape == shape
            case "bernoulli":
                assert isinstance(prediction, MultiLabel) and prediction.probs.shape == shape
            case "student-t":
                assert isinstance(prediction, HeavyTailedRegression) and prediction.mean.shape == shape
            case "negative-binomial":
                assert isinstance(prediction, OverdispersedCounts) and prediction.mean.shape == shape
            case "poisson":
                assert isinstance(prediction, Counts) and prediction.mean.shape == shape
            case _:
                assert isinstance(prediction, Classification) and prediction.probs.shape == shape
                torch.testing.assert_close(prediction.probs.sum(-1), torch.ones(shape[:-1], dtype=torch.float64))

    @every_structure
    def test_knows_what_was_asked_for(self, structure: str) -> None:
        case, posterior = fit("categorical", structure)
        kinds = [type(posterior.predict(case.new, joint=joint).logits) for joint in (False, True)]
        assert kinds == [Moments, JointMoments]
        if structure != "full-functions":
            assert isinstance(posterior.predict(case.new, linearised=False, samples=3).logits, Draws)

    def test_averages_the_uncertainty_by_each_link(self, generator: torch.Generator) -> None:
        case, posterior = fit("categorical", prior=lw.Isotropic(0.1))
        plain = torch.softmax(posterior.predict(case.new).logits.mean, -1)
        answers = [posterior.predict(case.new, link, samples=20_000, generator=generator) for link in ("probit", "mc")]
        for answer in answers:
            assert (answer.confidence < plain.amax(-1)).all()
        assert (answers[0].probs - answers[1].probs).abs().max() < 0.05
        assert answers[1].stderr is not None and answers[1].stderr.max() < 0.01
        assert not torch.allclose(posterior.predict(case.new, "bridge").probs, answers[0].probs, atol=1e-3)

    def test_is_certain_under_a_narrow_prior(self) -> None:
        case, posterior = fit("categorical", prior=lw.Isotropic(1e12))
        prediction = posterior.predict(case.new)
        torch.testing.assert_close(prediction.probs, torch.softmax(prediction.logits.mean, -1), rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize(("structure", "size"), in_turn(STRUCTURES, (1, 2), whole=("kfac",)))
    def test_takes_any_number_of_examples(self, structure: str, size: int) -> None:
        case, posterior = fit("images", structure)
        assert posterior.predict(case.new[:size]).probs.shape == (size, 3)
        assert posterior.sample_functions(case.new[:size], 2).shape == (2, size, 3)

    def test_takes_inputs_of_another_dtype(self) -> None:
        case, posterior = fit("categorical")
        probs = posterior.predict(case.new.float()).probs
        assert probs.dtype == torch.float64
        torch.testing.assert_close(probs, posterior.predict(case.new).probs, rtol=1e-5, atol=1e-5)

    def test_tracks_gradients_where_the_inputs_ask_for_them_alone(self) -> None:
        case, posterior = fit("gaussian")
        prediction = posterior.predict(case.new)
        assert not prediction.mean.requires_grad and not prediction.variance.requires_grad
        prediction = posterior.predict(case.new.clone().requires_grad_())
        assert prediction.mean.requires_grad and prediction.variance.requires_grad

    @pytest.mark.parametrize("ask", ["predict", "sample_functions"])
    def test_refuses_inputs_that_are_not_finite_or_none(self, ask: str) -> None:
        case, posterior = fit("categorical")
        spoilt = case.new.clone()
        spoilt[1, 1] = torch.inf
        with refused(DataError, "finite inputs"):
            getattr(posterior, ask)(spoilt)
        with refused(DataError, "at least one example"):
            getattr(posterior, ask)(case.new[:0])
        with refused(ShapeError, "outputs of shape [n, c]"):
            getattr(posterior, ask)(case.new[0])

    def test_refuses_a_link_it_does_not_know(self) -> None:
        case, posterior = fit("bernoulli")
        with refused(UnsupportedError, "'pairwise' or 'mc' for Bernoulli"):
            posterior.predict(case.new, "bridge")

    @every_structure
    def test_refuses_no_draws_of_the_weights(self, structure: str) -> None:
        _, posterior = fit("categorical", structure)
        with refused(ConfigError, "samples of at least 1"):
            posterior.sample(0)

    @every_structure
    def test_refuses_a_joint_covariance_that_does_not_fit(self, structure: str) -> None:
        _, posterior = fit("categorical", structure)
        many = normal(8000, 3)
        assert (3 * len(many)) ** 2 * 8 > JOINT
        with refused(TooLargeError, f"{JOINT:,} bytes"):
            posterior.predict(many, joint=True)
        if structure == "full-functions":
            with refused(TooLargeError, f"{JOINT:,} bytes"):
                posterior.sample_functions(many)
        else:
            assert posterior.sample_functions(many, 2).shape == (2, 8000, 3)

    @pytest.mark.parametrize(
        "structure",
        [lw.KFAC(), lw.Diagonal(), lw.LowRank(5), lw.Full(view="functions"), lw.Nystrom(5)],
        ids=lambda it: type(it).__name__,
    )
    @pytest.mark.no_cover
    def test_a_joint_covariance_takes_less_than_the_rows_of_all_its_inputs(self, structure: Any) -> None:
        x, y = normal(8, 6), normal(8, 9, seed=1)
        net = torch.nn.Sequential(torch.nn.Linear(6, 300), torch.nn.Tanh(), torch.nn.Linear(300, 9)).double()
        posterior = lw.Laplace(lw.Gaussian(), structure=structure).fit(net, (x, y))
        whole = posterior.predict(x, joint=True).outputs.covariance
        few = limited(posterior, training=2**17)
        with Meter() as meter:
            pieces = few.predict(x, joint=True).outputs.covariance
        torch.testing.assert_close(pieces, whole, rtol=1e-10, atol=1e-10 * float(whole.abs().max()))
        assert meter.most < y.numel() * posterior.network.size * 8

    def test_refuses_no_draws(self) -> None:
        case, posterior = fit("categorical")
        with refused(ConfigError, "samples of at least 1"):
            posterior.predict(case.new, linearised=False, samples=0)


class TestChoices:
    def test_are_added_to_the_trace(self) -> None:
        case, posterior = fit("gaussian")
        assert posterior.trace == ()
        steps = tuple(Step(float(i), (1.0,), 2.0, 3.0) for i in range(3))
        once = posterior.with_hyperparameters(lw.Isotropic(2.0), case.likelihood, steps[:2])
        assert once.with_hyperparameters(lw.Isotropic(3.0), case.likelihood, steps[2:]).trace == steps

    @every_structure
    def test_leave_the_posterior_as_it_is(self, structure: str) -> None:
        case, posterior = fit("gaussian", structure)
        before = posterior.log_marginal(), posterior.predict(case.new).variance
        changed = posterior.with_hyperparameters(lw.Isotropic(9.0), replace(case.likelihood, precision=7.0))
        assert changed.log_marginal() != before[0]
        assert not torch.allclose(changed.predict(case.new).variance, before[1])
        assert posterior.log_marginal() == before[0]
        assert torch.equal(posterior.predict(case.new).variance, before[1])

    def test_reuse_the_evidence_of_the_same_kind_of_prior(self) -> None:
        case, posterior = fit("gaussian")
        before = posterior.with_hyperparameters(lw.Isotropic(9.0), case.likelihood)
        assert before.evidence is posterior.evidence, "whichever asks first"
        assert posterior.with_hyperparameters(lw.Isotropic(9.0), case.likelihood).evidence is posterior.evidence
        assert replace(posterior, curvature=replace(posterior.curvature)).evidence is not posterior.evidence
        assert posterior.with_hyperparameters(lw.Layerwise(9.0), case.likelihood).evidence is not posterior.evidence

    @pytest.mark.parametrize(
        ("then", "now", "factor"),
        [
            (lw.Gaussian(2.0), lw.Gaussian(3.0), 1.5),
            (lw.Gaussian((2.0, 4.0)), lw.Gaussian((3.0, 6.0)), 1.5),
            (lw.Gaussian(2.0), lw.Gaussian((3.0, 3.0)), 1.5),
            (lw.Gaussian((2.0, 2.0)), lw.Gaussian(3.0), 1.5),
            (lw.Categorical(), lw.Categorical(), 1.0),
        ],
    )
    def test_change_the_noise_by_a_factor(self, then: Any, now: Any, factor: float) -> None:
        _, posterior = fit("gaussian" if factor > 1 else "categorical")
        model = replace(posterior.model, likelihood=then)
        assert replace(posterior, model=model, likelihood=now).noise_scale == pytest.approx(factor)

    @pytest.mark.parametrize(
        ("then", "now"),
        [
            (lw.Gaussian(2.0), lw.Gaussian((3.0, 4.0))),
            (lw.Gaussian((2.0, 4.0)), lw.Gaussian(3.0)),
            (lw.Gaussian((2.0, 4.0)), lw.Gaussian((4.0, 2.0))),
            (lw.Gaussian(2.0), lw.Gaussian(2.0, event_dim=1)),
            (lw.Gaussian(2.0), lw.Categorical()),
            (lw.Categorical(), lw.Bernoulli()),
        ],
    )
    def test_refuse_another_likelihood(self, then: Any, now: Any) -> None:
        _, posterior = fit("gaussian")
        fitted = replace(posterior, model=replace(posterior.model, likelihood=then))
        with refused(UnsupportedError, "one factor"):
            fitted.with_hyperparameters(posterior.prior, now)

    @pytest.mark.parametrize(
        ("structure", "name"),
        in_turn(STRUCTURES, ("gaussian", "images", "tokens", "pixels"), whole=("kfac", "diagonal", "full-functions")),
    )
    def test_predict_together_as_each_alone(self, structure: str, name: str) -> None:
        case, posterior = fit(name, structure, prior=lw.Layerwise())
        likelihoods = [case.likelihood] * 3
        if isinstance(case.likelihood, lw.Gaussian):
            likelihoods[1] = replace(case.likelihood, precision=9.0)
        layers = len(posterior.network.uncertain.layers)
        values = (1.0, 0.2, tuple(1.0 + i for i in range(layers)))
        choices = [posterior.with_hyperparameters(lw.Layerwise(v), f) for v, f in zip(values, likelihoods, strict=True)]
        together = posterior.outputs_each(case.new, choices)
        kind = "outputs" if name == "gaussian" else "logits"
        alone = [getattr(choice.predict(case.new), kind) for choice in choices]
        for a, b in zip(together, alone, strict=True):
            assert type(a) is type(b)
            torch.testing.assert_close(a.covariance, b.covariance, rtol=1e-9, atol=1e-11)
        assert not torch.allclose(alone[0].covariance, alone[1].covariance, rtol=1e-3, atol=0)


class TestEvidence:
    def test_prefers_the_prior_that_drew_the_weights(self) -> None:
        """A linear network with many weights of standard deviation 0.2: a precision near 25."""
        model = seeded(lambda: torch.nn.Linear(50, 1, bias=False))
        with torch.no_grad():
            model.weight.copy_(0.2 * normal(1, 50))
        x = normal(400, 50, seed=1)
        y = model(x).detach() + 0.1 * normal(400, 1, seed=2)
        posterior = lw.Laplace(lw.Gaussian(100.0)).fit(model, (x, y))
        precisions = [1.0, 25.0, 600.0]
        scores = [
            posterior.with_hyperparameters(lw.Isotropic(p), lw.Gaussian(100.0)).log_marginal() for p in precisions
        ]
        assert scores[1] > max(scores[0], scores[2]) + 5

    @every_structure
    def test_effective_dimension_falls_from_the_rank_to_zero(self, structure: str) -> None:
        case, posterior = fit("gaussian", structure)
        priors = (1e-9, 1.0, 1e9)
        gammas = [
            posterior.with_hyperparameters(lw.Isotropic(p), case.likelihood).effective_dimension() for p in priors
        ]
        assert gammas[0] > gammas[1] > gammas[2] >= 0
        assert gammas[2] == pytest.approx(0.0, abs=1e-3)
        if structure.startswith("full"):
            assert gammas[0] == pytest.approx(
                20.0, abs=1e-2
            )  # as many as there are observations: 10 examples, 2 outputs


def test_ignored_labels_do_not_count() -> None:
    case = problem("categorical")
    kept = case.y != -100
    usual = case.fit(lw.Laplace(case.likelihood))
    without = replace(case, x=case.x[kept], y=case.y[kept]).fit(lw.Laplace(case.likelihood))
    assert usual.totals.observations == without.totals.observations == 9
    assert usual.log_marginal() == pytest.approx(without.log_marginal(), rel=1e-12)


def test_float32_networks_stay_in_float32() -> None:
    model = seeded(lambda: torch.nn.Linear(3, 3)).float()
    posterior = lw.Laplace(lw.Categorical()).fit(model, (normal(8, 3), labels(8, classes=3)))
    prediction = posterior.predict(normal(2, 3))
    assert prediction.probs.dtype == torch.float32 and prediction.logits.covariance.dtype == torch.float32


@pytest.mark.parametrize(
    "structure", [lw.Full(), lw.Full(view="functions"), lw.Sampled(2), lw.MatrixFree(), lw.Nystrom(2, 4)]
)
def test_functions_are_at_least_one_and_drawn_from_a_generator(structure: Any) -> None:
    case = problem("images")
    posterior = case.fit(lw.Laplace(case.likelihood, structure=structure))
    for bad in (0, -2):
        with refused(ConfigError, "samples of at least 1"):
            posterior.sample_functions(case.new, bad)
    word: Any = "0"
    with unchecked():
        for draw in (posterior.sample_functions, posterior.predict):
            with refused(ConfigError, "generator="):
                draw(case.new, generator=word)
