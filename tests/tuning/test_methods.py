"""Tuning against the dense evidence, the densities of held-out data, and counts of what it cost."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.distributions import MultivariateNormal

import lapwing as lw
from lapwing.errors import ConfigError, DataError, UnsupportedError
from lapwing.likelihoods import Likelihood
from lapwing.posteriors import Step
from lapwing.posteriors.base import first
from lapwing.predictive import log_predictive
from lapwing.priors import Prior
from lapwing.tuning import Method, evidence_at
from tests.posterior_cases import STRUCTURES, Linearised, Problem, labels, mlp, normal, problem, refused

EVIDENCE: dict[str, Callable[..., Any]] = {"gradient": lw.EvidenceGradient, "MacKay": lw.MacKay}
PRIORS: dict[str, Prior] = {"isotropic": lw.Isotropic(3.0), "layerwise": lw.Layerwise((0.2, 5.0))}

every_method = pytest.mark.parametrize("method", EVIDENCE)
every_prior = pytest.mark.parametrize("prior", PRIORS)


def held_out(case: Problem) -> tuple[Tensor, Tensor]:
    """Other inputs with targets of the same kind."""
    return normal(8, 3, seed=5), case.y[:8]


def fit(name: str, structure: str = "full-weights", **options: Any) -> tuple[Problem, lw.Posterior]:
    case = problem(name)
    return case, case.fit(lw.Laplace(case.likelihood, structure=STRUCTURES[structure], **options))


class DenseEvidence:
    """The evidence of the linear model around a network, from dense matrices made by automatic differentiation."""

    def __init__(self, case: Problem, posterior: lw.Posterior) -> None:
        self.case, self.linear = case, Linearised(case, posterior.network)
        self.group, self.groups = posterior.prior.groups(posterior.network.uncertain)
        self.start = posterior.prior.precisions(posterior.network.uncertain)
        self.noisy = isinstance(case.likelihood, lw.Gaussian)
        self.f, self.y = self.linear._canonical
        self.jacobian = self.linear.jacobian(case.x).flatten(0, -2)
        self.ggn, self.theta = self.linear.ggn, self.linear.theta

    def at_weights(self, point: Tensor) -> float:
        prior, scale = self._values(point)
        likelihood = scaled(self.case.likelihood, scale) if self.noisy else self.case.likelihood
        fit = float(likelihood.nll(self.f, self.y).sum())
        log_prior = 0.5 * float((torch.log(prior) - prior * self.theta.square()).sum())
        return log_prior - fit - 0.5 * float(torch.logdet(scale * self.ggn + torch.diag(prior)))

    def at_mode(self, point: Tensor) -> float:
        """The marginal likelihood of ``y - f + J θ``, whose mean is zero before any data."""
        prior, scale = self._values(point)
        noise = (1 / scaled(self.case.likelihood, scale).precisions(self.f)).expand(self.f.shape).flatten()
        targets = (self.y - self.f).flatten() + self.jacobian @ self.theta
        covariance = (self.jacobian / prior) @ self.jacobian.mT + torch.diag(noise)
        normal_ = MultivariateNormal(torch.zeros_like(targets), covariance, validate_args=False)
        return float(normal_.log_prob(targets))

    def _values(self, point: Tensor) -> tuple[Tensor, float]:
        """Prior precision of each weight, and the factor of the noise precision."""
        return point[: self.groups].exp()[self.group], float(point[-1].exp()) if self.noisy else 1.0

    def maximum(self, value: Callable[[Tensor], float]) -> Tensor:
        """Where a function of the log hyper-parameters is largest, by a search that knows no gradient."""
        start = torch.cat([self.start.log(), torch.zeros(int(self.noisy))]).numpy()
        options = {"xatol": 1e-9, "fatol": 1e-12, "maxfev": 4000}
        found = minimize(lambda x: -value(torch.as_tensor(x)), start, method="Nelder-Mead", options=options)
        assert found.success
        return torch.as_tensor(found.x)


@cache
def dense_optimum(name: str, prior: str, at: str) -> tuple[DenseEvidence, Tensor]:
    """The dense evidence of a problem and where it is largest."""
    dense = DenseEvidence(*fit(name, prior=PRIORS[prior]))
    return dense, dense.maximum(dense.at_mode if at == "mode" else dense.at_weights)


def scaled(likelihood: Likelihood, factor: float) -> lw.Gaussian:
    """The likelihood with all its noise precisions times a factor."""
    assert isinstance(likelihood, lw.Gaussian)
    many = likelihood.precision
    return likelihood.with_precision(tuple(p * factor for p in many) if isinstance(many, tuple) else many * factor)


def point_of(posterior: lw.Posterior) -> Tensor:
    """Log prior precisions, then for Gaussian noise the log of its factor."""
    noisy = isinstance(posterior.likelihood, lw.Gaussian)
    return torch.cat([posterior.prior_precisions.log(), posterior.scale.log().view(1)[: int(noisy)]])


def at_step(posterior: lw.Posterior, step: Step) -> lw.Posterior:
    """The posterior with the hyper-parameters of a step."""
    prior = posterior.prior.with_precisions(torch.tensor(step.prior_precision, dtype=torch.float64))
    if step.noise_precision is None:
        return posterior.with_choices(prior, posterior.likelihood)
    assert isinstance(posterior.fitted, lw.Gaussian)
    factor = step.noise_precision / first(posterior.fitted.precision)
    return posterior.with_choices(prior, scaled(posterior.fitted, factor))


class TestEvidence:
    @every_method
    @every_prior
    @pytest.mark.parametrize("name", ["gaussian", "gaussian-per-output", "categorical"])
    def test_reaches_the_maximum_of_the_dense_evidence(self, name: str, prior: str, method: str) -> None:
        tuned = lw.tune(fit(name, prior=PRIORS[prior])[1], EVIDENCE[method]())
        dense, best = dense_optimum(name, prior, "weights")
        torch.testing.assert_close(point_of(tuned), best, rtol=0, atol=2e-5)
        assert tuned.log_marginal() == pytest.approx(dense.at_weights(best), rel=1e-10)

    @every_method
    @every_prior
    @pytest.mark.parametrize("name", ["gaussian", "gaussian-per-output"])
    def test_reaches_the_maximum_at_the_mode(self, name: str, prior: str, method: str) -> None:
        tuned = lw.tune(fit(name, prior=PRIORS[prior])[1], EVIDENCE[method](at="mode"))
        dense, best = dense_optimum(name, prior, "mode")
        assert tuned.trace[-1].log_marginal == pytest.approx(dense.at_mode(best), rel=1e-8)
        assert dense.at_mode(point_of(tuned)) == pytest.approx(dense.at_mode(best), rel=1e-8)

    @every_method
    @pytest.mark.parametrize("structure", STRUCTURES)
    def test_no_point_of_a_grid_is_better(self, structure: str, method: str) -> None:
        _, posterior = fit("gaussian", structure)
        tuned = lw.tune(posterior, EVIDENCE[method]())
        precisions = torch.logspace(-6, 6, 25, dtype=torch.float64)
        values = [
            float(posterior.evidence.log_marginal(precision.view(1), scale))
            for precision in precisions
            for scale in torch.logspace(-4, 4, 17, dtype=torch.float64)
        ]
        assert max(values) <= tuned.log_marginal() < max(values) + 1.5

    @every_method
    @every_prior
    @pytest.mark.parametrize("structure", ["full-weights", "full-functions", "kfac"])
    def test_fixed_point_equations_hold(self, structure: str, prior: str, method: str) -> None:
        """α |θ|² = γ in every group, and ρ times the squared error = N - γ."""
        _, posterior = fit("gaussian", structure, prior=PRIORS[prior])
        tuned = lw.tune(posterior, EVIDENCE[method]())
        alpha, scale, evidence = tuned.prior_precisions, tuned.scale, tuned.evidence
        gamma = evidence.effective_dimensions(alpha, scale)
        torch.testing.assert_close(alpha * evidence.square_norms, gamma, rtol=1e-5, atol=1e-8)
        assert float(scale) * evidence.misfit == pytest.approx(20 - float(gamma.sum()), rel=1e-5)
        assert tuned.effective_dimension() == pytest.approx(float(gamma.sum()))

    @pytest.mark.parametrize("at", ["weights", "mode"])
    def test_the_gradient_it_follows_is_that_of_finite_differences(self, at: str) -> None:
        case, posterior = fit("gaussian-per-output", prior=PRIORS["layerwise"])
        dense = DenseEvidence(case, posterior)
        value = dense.at_weights if at == "weights" else dense.at_mode
        tuned = lw.tune(posterior, lw.EvidenceGradient(at=at, noise=True))
        away = point_of(tuned) + 0.3
        evidence = posterior.evidence if at == "weights" else replace(posterior.evidence, shift=posterior.shift)
        leaf = away.clone().requires_grad_()
        evidence.log_marginal(leaf[:2].exp(), leaf[2].exp()).backward()
        steps = 1e-5 * torch.eye(3, dtype=torch.float64)
        slopes = [(value(away + step) - value(away - step)) / 2e-5 for step in steps]
        torch.testing.assert_close(leaf.grad, torch.tensor(slopes, dtype=torch.float64), rtol=1e-6, atol=1e-6)

    @every_method
    def test_converges_where_whole_steps_of_the_fixed_point_go_round_in_a_circle(self, method: str) -> None:
        _, posterior = fit("gaussian", "diagonal", prior=lw.Layerwise((1e-4, 1e4)))
        tuned = lw.tune(posterior, EVIDENCE[method]())
        gamma = tuned.evidence.effective_dimensions(tuned.prior_precisions, tuned.scale)
        torch.testing.assert_close(tuned.prior_precisions * tuned.evidence.square_norms, gamma, rtol=1e-6, atol=0)
        assert len(tuned.trace) < 80

    @every_method
    def test_noise_of_several_outputs_changes_by_one_factor(self, method: str) -> None:
        _, posterior = fit("gaussian-per-output")
        noise = lw.tune(posterior, EVIDENCE[method]()).likelihood.precision
        assert isinstance(noise, tuple) and noise[0] != 0.5
        assert noise[1] / noise[0] == pytest.approx(3.0 / 0.5, rel=1e-12)

    @every_method
    def test_noise_is_left_alone_on_request(self, method: str) -> None:
        case, posterior = fit("gaussian")
        tuned = lw.tune(posterior, EVIDENCE[method](noise=False))
        assert tuned.likelihood == case.likelihood
        assert lw.tune(posterior, EVIDENCE[method]()).log_marginal() > tuned.log_marginal() > posterior.log_marginal()

    @every_method
    @pytest.mark.parametrize(("name", "structure"), [("categorical", "kfac"), ("gaussian", "diagonal")])
    def test_where_it_starts_makes_no_difference(self, name: str, structure: str, method: str) -> None:
        """Also where the first effective dimension exceeds the number of observations, as a diagonal's can."""
        points = []
        for precision in (1e-6, 1.0, 1e6):
            _, posterior = fit(name, structure, prior=lw.Isotropic(precision))
            tuned = lw.tune(posterior, EVIDENCE[method]())
            points.append(point_of(tuned))
            assert tuned.log_marginal() >= posterior.log_marginal()
            assert precision > 1e-6 or name == "categorical" or posterior.effective_dimension() > 20
        for point in points:
            torch.testing.assert_close(point, points[0], rtol=0, atol=1e-5)

    @every_method
    @pytest.mark.parametrize(("name", "structure"), [("categorical", "full-weights"), ("gaussian", "full-functions")])
    def test_the_mode_is_refused_where_it_has_no_closed_form(self, name: str, structure: str, method: str) -> None:
        _, posterior = fit(name, structure)
        with refused(UnsupportedError, expected="at='mode'", got=type(posterior).__name__, hint="at='weights'"):
            lw.tune(posterior, EVIDENCE[method](at="mode"))

    def test_an_unknown_place_is_refused(self) -> None:
        """Also where nobody checks annotations, as the tests do."""
        _, posterior = fit("gaussian")
        plain: Any = inspect.unwrap(evidence_at)
        with refused(ConfigError, expected="'weights', 'mode'", got="'prior'", hint="at='weights'"):
            plain(posterior, "prior")

    @every_method
    def test_steps_are_at_most_as_many_as_allowed(self, method: str) -> None:
        _, posterior = fit("gaussian")
        assert len(lw.tune(posterior, EVIDENCE[method](steps=2)).trace) <= 2 + 1
        assert len(lw.tune(posterior, EVIDENCE[method]()).trace) > 2 + 1

    @every_method
    def test_weights_that_are_all_zero_are_held_there(self, method: str) -> None:
        """Their evidence grows without bound; the largest precision considered is kept."""
        case = problem("gaussian")
        with torch.no_grad():
            for weights in case.model.parameters():
                weights.zero_()
        tuned = lw.tune(case.fit(lw.Laplace(case.likelihood)), EVIDENCE[method]())
        most = float(tuned.evidence.log_marginal(torch.tensor([1e12]).double(), tuned.scale))
        assert tuned.log_marginal() == pytest.approx(most, abs=1e-4)


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
        scores = lw.evaluate(tuned, held_out(case), link=link, generator=torch.Generator().manual_seed(0))
        assert scores["nll"] == pytest.approx(tuned.trace[-1].validation_nll, rel=1e-9)
        assert scores["nll"] != pytest.approx(lw.evaluate(tuned, held_out(case))["nll"], rel=1e-6)

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
            {"coarse": 1},
            {"refine": 0},
        ],
    )
    def test_refuses_grids_without_points(self, options: dict[str, Any]) -> None:
        name, value = next(iter(options.items()))
        with refused(ConfigError, expected="low < high", got=f"{name}={value}", hint="Validation(data)"):
            lw.Validation((normal(4, 3), normal(4, 2)), **options)

    def test_refuses_data_without_a_target(self) -> None:
        _, posterior = fit("categorical")
        with refused(DataError, expected="target", got="ignored", hint="label"):
            lw.tune(posterior, lw.Validation((normal(4, 3), torch.full((4,), -100))))


def methods(case: Problem) -> dict[str, Method]:
    """Every method, small."""
    small = lw.Validation(held_out(case), coarse=4, refine=2, bounds=(1e-2, 1e2))
    return {"gradient": lw.EvidenceGradient(), "MacKay": lw.MacKay(), "validation": small}


every_way = pytest.mark.parametrize("method", ["gradient", "MacKay", "validation"])


class TestEveryMethod:
    @every_way
    @pytest.mark.parametrize("name", ["gaussian-per-output", "categorical"])
    @pytest.mark.parametrize("structure", ["full-functions", "kfac"])
    def test_the_trace_says_what_each_step_was(self, name: str, structure: str, method: str) -> None:
        case, posterior = fit(name, structure)
        tuned = lw.tune(posterior, methods(case)[method])
        assert posterior.trace == () and len(tuned.trace) > 2
        for step in tuned.trace:
            one = at_step(posterior, step)
            assert step.log_marginal == pytest.approx(one.log_marginal(), rel=1e-10)
            assert step.effective_dimension == pytest.approx(one.effective_dimension(), rel=1e-10)
            assert (step.noise_precision is None) == (name == "categorical")
        assert tuned.trace[-1].log_marginal == pytest.approx(tuned.log_marginal(), rel=1e-12)
        assert tuned.trace[-1].effective_dimension == pytest.approx(tuned.effective_dimension(), rel=1e-12)
        torch.testing.assert_close(torch.tensor(tuned.trace[-1].prior_precision).double(), tuned.prior_precisions)

    @every_way
    def test_the_trace_of_a_second_tuning_follows_the_first(self, method: str) -> None:
        case, posterior = fit("gaussian")
        once = lw.tune(posterior, lw.MacKay(steps=3))
        twice = lw.tune(once, methods(case)[method])
        assert twice.trace[: len(once.trace)] == once.trace
        assert len(twice.trace) > len(once.trace)
        if method != "validation":
            torch.testing.assert_close(
                point_of(twice), point_of(lw.tune(posterior, methods(case)[method])), rtol=0, atol=1e-5
            )

    @every_way
    def test_predictions_are_those_of_a_fit_with_the_tuned_values(self, method: str) -> None:
        case, posterior = fit("gaussian", "kfac")
        tuned = lw.tune(posterior, methods(case)[method])
        again = case.fit(lw.Laplace(tuned.likelihood, structure=lw.KFAC(), prior=tuned.prior))
        for one, other in [(tuned.predict(case.new), again.predict(case.new))]:
            torch.testing.assert_close(one.mean, other.mean)
            torch.testing.assert_close(one.variance, other.variance)
        assert tuned.log_marginal() == pytest.approx(again.log_marginal(), rel=1e-9)

    @every_way
    def test_no_data_are_read_again(self, method: str) -> None:
        """Held-out data are read once, whatever the number of points."""
        case = problem("gaussian")
        train, held = Counted(case.batches()), Counted([held_out(case)])
        posterior = lw.Laplace(case.likelihood).fit(case.model, train)
        before = train.passes
        calls: list[int] = []
        hook = case.model.register_forward_hook(lambda *_: calls.append(1))
        lw.tune(
            posterior, replace(methods(case)[method], data=held) if method == "validation" else methods(case)[method]
        )
        hook.remove()
        assert train.passes == before > 0
        assert held.passes == (1 if method == "validation" else 0)
        assert len(calls) <= (6 if method == "validation" else 0)

    @every_way
    @pytest.mark.parametrize("structure", ["full-weights", "full-functions", "kfac"])
    def test_the_curvature_is_decomposed_once(
        self, monkeypatch: pytest.MonkeyPatch, structure: str, method: str
    ) -> None:
        """Later predictions use the same decomposition."""
        case, posterior = fit("categorical", structure)
        sizes: list[int] = []
        for name in ("eigh", "eigvalsh"):
            kept = getattr(torch.linalg, name)

            def counted(matrix: Tensor, *args: Any, kept: Callable[..., Any] = kept, **options: Any) -> Any:
                sizes.append(matrix.shape[-1])
                return kept(matrix, *args, **options)

            monkeypatch.setattr(torch.linalg, name, counted)
        tuned = lw.tune(posterior, methods(case)[method])
        tuned.predict(case.new)
        tuned.log_marginal()
        factors = {"full-weights": 1, "full-functions": 1, "kfac": 4}[structure]
        assert len(sizes) <= factors
        assert len(sizes) >= 1

    @every_way
    def test_is_quiet_unless_asked(self, method: str, capfd: pytest.CaptureFixture[str]) -> None:
        case, posterior = fit("categorical")
        lw.tune(posterior, methods(case)[method])
        assert capfd.readouterr() == ("", "")
        lw.tune(posterior, methods(case)[method], progress=True)
        assert {"gradient": "evidence"}.get(method, method) in capfd.readouterr().err

    @every_way
    def test_the_posterior_and_the_network_stay_as_they_were(self, method: str) -> None:
        case, posterior = fit("gaussian")
        before = (posterior.log_marginal(), posterior.predict(case.new).variance)
        weights = {name: value.clone() for name, value in case.model.state_dict().items()}
        tuned = lw.tune(posterior, methods(case)[method])
        assert posterior.log_marginal() == before[0] != tuned.log_marginal()
        assert torch.equal(posterior.predict(case.new).variance, before[1])
        assert posterior.prior == lw.Isotropic(1.0) and posterior.likelihood == case.likelihood
        assert all(torch.equal(value, weights[name]) for name, value in case.model.state_dict().items())
        assert case.model.training

    @every_way
    def test_single_precision_networks_agree_with_double(self, method: str) -> None:
        case, posterior = fit("gaussian", "kfac")
        single = replace(case, model=mlp().float(), x=case.x.float(), y=case.y.float())
        tuned = [
            lw.tune(one, methods(case)[method])
            for one in (posterior, single.fit(lw.Laplace(case.likelihood, structure=lw.KFAC())))
        ]
        torch.testing.assert_close(point_of(tuned[1]), point_of(tuned[0]), rtol=0, atol=1e-2)

    def test_the_default_is_the_gradient_of_the_evidence(self) -> None:
        _, posterior = fit("gaussian")
        assert lw.tune(posterior).trace == lw.tune(posterior, lw.EvidenceGradient()).trace

    @every_way
    def test_works_where_gradients_are_off(self, method: str) -> None:
        case, posterior = fit("gaussian")
        with torch.no_grad():
            off = lw.tune(posterior, methods(case)[method])
        assert off.trace == lw.tune(posterior, methods(case)[method]).trace


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


class Counted:
    """A loader that counts how often it is read."""

    def __init__(self, batches: list[tuple[Tensor, Tensor]]) -> None:
        self.batches, self.passes = batches, 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.passes += 1
        return iter(self.batches)


def test_labels_of_another_kind_are_refused() -> None:
    _, posterior = fit("categorical")
    with pytest.raises(DataError, match="labels"):
        lw.tune(posterior, lw.Validation((normal(4, 3), labels(4, classes=3) + 7)))
