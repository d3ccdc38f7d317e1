"""Tuning by held-out data: every loss is that of evaluation; the best precision, link, temperature and noise win."""

from __future__ import annotations

import math
import warnings
import weakref
from copy import deepcopy
from itertools import chain, count, repeat
from typing import Any

import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.evaluation.plain_network import PlainNetwork, Temperature
from lapwing.ground.data.sources import Batch
from lapwing.ground.errors import ConfigError, ConvergenceWarning, DataError
from lapwing.predictive.temperature import sharpening_penalty
from lapwing.tuning.held_out.outputs import Contracted, held_out_outputs
from lapwing.tuning.held_out.search import Point, inflation
from tests.pairwise import in_turn
from tests.posterior_cases import Problem, labels, normal, problem, refused, seeded
from tests.tuning.cases import at_step, fit, held_out

EXACT = lw.solvers.CG(rtol=1e-10)
NEAR = lw.solvers.CG(rtol=1e-6)
NARROW = (1e-2, 1e2)

pytestmark = pytest.mark.filterwarnings("ignore:Validation:lapwing.ConvergenceWarning")


def nll(posterior: lw.Posterior, data: Any) -> float:
    return lw.evaluate(posterior, data, generator=torch.Generator().manual_seed(0))["nll"]


def penalised(step: Any, start: lw.Posterior, y: Tensor) -> float:
    """What a search minimises: the loss with the share of each target in what temperature and precision cost."""
    penalty = sharpening_penalty(step.temperature or 1.0)
    if not start.likelihood.labels:
        noise = torch.as_tensor(step.noise_precision).double()
        moved = torch.tensor(step.prior_precision[0]).log10() - start.prior_precisions[0].log10()
        if start.survey.head:
            moved = moved - level(noise) + level(torch.as_tensor(start.likelihood.noise_precision))
            free = -level((noise * y.double().var(0, correction=0)).clamp_min(1.0))
            moved = moved - moved.clamp(free, 0.0)
        penalty += float(moved) ** 2 / 8
    return step.validation_nll + penalty / len(y)


def level(precisions: Tensor) -> Tensor:
    """Decades of their geometric mean."""
    return precisions.double().log10().mean()


class TestSearch:
    @pytest.mark.parametrize(
        ("structure", "name"),
        in_turn(
            ["full-weights", "full-functions", "kfac", "low-rank", "nystrom"],
            ["categorical", "gaussian-per-output", "bernoulli"],
            whole=("kfac",),
        ),
    )
    @pytest.mark.no_cover
    def test_picks_the_best_it_saw_and_every_loss_is_that_of_evaluate(self, structure: str, name: str) -> None:
        """Also where labels are ignored. Between the points of the grid covariances are interpolated."""
        case, posterior = fit(name, structure)
        batches = [(x, y) for x, y in zip(*(part.split(3) for part in held_out(case)), strict=True)]
        tuned = lw.tune(posterior, lw.Validation(batches, temperature=False))
        losses = [penalised(step, posterior, case.y[:8]) for step in tuned.trace]
        assert losses[-1] == pytest.approx(min(losses), rel=1e-5) and losses[-1] < max(losses)
        assert nll(tuned, batches) == pytest.approx(tuned.trace[-1].validation_nll, rel=1e-4)
        for step in tuned.trace[:11:5]:
            there = at_step(posterior, step)
            there = there if step.link is None else there.with_link(step.link, step.temperature or 1.0)
            assert nll(there, batches) == pytest.approx(step.validation_nll, rel=1e-7)
            assert step.effective_dimension == pytest.approx(there.effective_dimension(), rel=1e-7)

    @pytest.mark.no_cover
    def test_is_the_best_of_a_fine_grid_of_all_links(self) -> None:
        case, posterior = fit("categorical")
        data = held_out(case)
        tuned = lw.tune(posterior, lw.Validation(data, temperature=False))
        fine = [posterior.with_hyperparameters(lw.Isotropic(10 ** (k / 10)), case.likelihood) for k in range(-60, 61)]
        losses = {
            link: [float(-one.predict(data[0], link).log_prob(data[1]).mean()) for one in fine]
            for link in ("probit", "pairwise", "qmc")
        }
        best = min(losses, key=lambda link: min(losses[link]))
        assert tuned.link == best and tuned.trace[-1].link == best
        assert tuned.trace[-1].validation_nll == pytest.approx(min(losses[best]), abs=1e-4)
        assert torch.equal(tuned.predict(data[0]).probs, tuned.predict(data[0], tuned.link).probs)

    def test_a_link_that_is_given_is_the_one_that_is_tuned(self) -> None:
        case, posterior = fit("categorical")
        tuned = lw.tune(posterior, lw.Validation(held_out(case), link="bridge"))
        assert tuned.link == "bridge" and {step.link for step in tuned.trace} == {"bridge"}
        assert nll(tuned, held_out(case)) == pytest.approx(tuned.trace[-1].validation_nll, rel=1e-4)

    @pytest.mark.parametrize("name", ["tokens", "pixels"])
    def test_positions_count_as_examples(self, name: str) -> None:
        case, posterior = fit(name, "kfac")
        data = (case.x[:3], case.y[:3])
        tuned = lw.tune(posterior, data)
        probs, y = tuned.predict(data[0]).probs, data[1]
        kept = y != -100
        by_hand = -probs[kept].gather(-1, y[kept][:, None]).log().mean()
        assert tuned.trace[-1].validation_nll == pytest.approx(float(by_hand), rel=1e-4)

    def test_one_factor_scales_every_precision(self) -> None:
        case, posterior = fit("gaussian-per-output", prior=lw.Layerwise((0.2, 5.0)))
        tuned = lw.tune(posterior, held_out(case))
        assert isinstance(tuned.prior, lw.Layerwise) and isinstance(tuned.prior.precision, tuple)
        assert tuned.prior.precision[1] / tuned.prior.precision[0] == pytest.approx(25.0)
        noise = tuned.likelihood.precision
        assert noise[1] / noise[0] == pytest.approx(6.0) and noise[0] != 0.5

    def test_noise_is_the_best_there_is(self) -> None:
        case, posterior = fit("gaussian-per-output")
        tuned = lw.tune(posterior, held_out(case))
        for factor in (0.97, 1.03):
            noise = tuple(p * factor for p in tuned.likelihood.precision)
            prior = tuned.prior.with_precisions(tuned.prior_precisions * factor)
            assert (
                nll(tuned.with_hyperparameters(prior, lw.Gaussian(noise)), held_out(case))
                > tuned.trace[-1].validation_nll
            )
        kept = lw.tune(posterior, lw.Validation(held_out(case), noise=False))
        assert kept.likelihood == case.likelihood
        assert kept.trace[-1].validation_nll > tuned.trace[-1].validation_nll

    @pytest.mark.parametrize("name", ["poisson", "negative-binomial", "student-t", "heteroscedastic"])
    def test_unlikely_precisions_do_not_stop_the_search(self, name: str) -> None:
        """Where the prior is weakest, the expected rates overflow."""
        case, posterior = fit(name)
        tuned = lw.tune(posterior, held_out(case))
        assert nll(tuned, held_out(case)) == pytest.approx(tuned.trace[-1].validation_nll, rel=1e-4)

    def test_unpacks_what_the_loader_yields(self) -> None:
        case, posterior = fit("categorical")
        x, y = held_out(case)
        plain = lw.tune(posterior, lw.Validation([(x, y)], bounds=NARROW))
        unpack = {"unpack": lambda e: (e["a"], e["b"])}
        assert lw.tune(posterior, lw.Validation([{"a": x, "b": y}], bounds=NARROW, **unpack)).trace == plain.trace

    def test_unpacks_as_the_fit_did(self) -> None:
        """Of a loader; a pair of tensors needs none."""
        case = problem("categorical")
        recipe = lw.Laplace(case.likelihood, structure=lw.KFAC())
        posterior = recipe.fit(case.model, [{"a": case.x, "b": case.y}], unpack=lambda e: (e["a"], e["b"]))
        x, y = held_out(case)
        by_name, by_place = (lw.tune(posterior, data) for data in ([{"a": x, "b": y}], (x, y)))
        assert by_name.trace == by_place.trace


class TestTemperature:
    @pytest.mark.parametrize(
        ("scale", "structure"),
        [(0.2, lw.KFAC()), (1.0, lw.Sampled(5, EXACT)), (9.0, lw.KFAC()), (9.0, lw.Sampled(5, NEAR))],
        ids=["timid", "trained", "bold", "bold, by draws"],
    )
    def test_the_best_is_never_worse_than_temperature_scaling(self, scale: float, structure: Any) -> None:
        """By what both minimise, the penalty on sharpening included. Labels are drawn from the network of scale 1.

        What is taken in its place is hardly less likely.
        """
        model = problem("categorical").model
        x, new = normal(30, 3), normal(60, 3, seed=5)
        honest = torch.softmax(3 * model(new).detach(), -1)
        targets = torch.multinomial(honest, 1, generator=torch.Generator().manual_seed(6))[:, 0]
        with torch.no_grad():
            model[3].weight.mul_(3 * scale)
            model[3].bias.mul_(3 * scale)
        recipe = lw.Laplace(lw.Categorical(), structure=structure)
        posterior = recipe.fit(model, (x, labels(30, classes=3)))
        tuned = lw.tune(posterior, (new, targets))
        assert tuned.temperature == tuned.trace[-1].temperature
        assert nll(tuned, (new, targets)) == pytest.approx(tuned.trace[-1].validation_nll, rel=1e-4)
        logits = posterior.predict(new).logits.mean
        scaled = Temperature.fit(logits, targets)
        loss = -float(scaled.probs(logits).gather(1, targets[:, None]).log().mean())
        best = min(penalised(step, posterior, targets) for step in tuned.trace)
        assert best < loss + sharpening_penalty(scaled.temperature) / 60 + 1e-5
        assert 60 * (penalised(tuned.trace[-1], posterior, targets) - best) < 1.0
        plain = lw.tune(posterior, lw.Validation((new, targets), temperature=False, bounds=NARROW))
        assert plain.temperature == 1.0 and {step.temperature for step in plain.trace} == {1.0}


class TestNoise:
    @pytest.mark.parametrize(
        ("trust", "outputs"),
        [(0.1, 2), (1.0, 1), (30.0, 1), (30.0, 2)],
        ids=["noisy", "fair", "sure", "sure, two outputs"],
    )
    def test_is_never_worse_than_the_network_with_the_noise_of_its_residuals(self, trust: float, outputs: int) -> None:
        """By more than the two nats that error bars are worth; the network was fitted by few or by many steps."""
        generator = torch.Generator().manual_seed(outputs)
        x, new = (torch.randn(24, 2, generator=generator, dtype=torch.float64) for _ in range(2))
        noise = torch.tensor([0.3, 1.0], dtype=torch.float64)[:outputs]

        def targets(inputs: Tensor) -> Tensor:
            truth = torch.stack([inputs.sin().sum(-1), inputs.prod(-1)], -1)[:, :outputs]
            return truth + noise * torch.randn(truth.shape, generator=generator, dtype=torch.float64)

        y, held = targets(x), targets(new)
        model = seeded(lambda: torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, outputs)))
        optimiser = torch.optim.Adam(model.parameters(), 0.03)
        for _ in range(int(20 * trust)):
            optimiser.zero_grad()
            (model(x) - y).square().mean().backward()
            optimiser.step()
        posterior = lw.Laplace(lw.Gaussian(), structure=lw.KFAC()).fit(model, (x, y))
        tuned = lw.tune(posterior, (new, held))
        plain = PlainNetwork(model, lw.Gaussian()).calibrated((new, held))
        loss = -float(plain.predict(new).log_prob(held).mean())
        assert len(new) * (nll(tuned, (new, held)) - loss) < 2.0 + 1e-6


class TestRealTargets:
    """Held-out inputs like those of training, which say next to nothing of weak priors."""

    @staticmethod
    def problem(noise: tuple[float, ...]) -> tuple[torch.nn.Module, list[tuple[Tensor, Tensor]]]:
        """A cubic polynomial with exact weights, and training and held-out data of one distribution."""

        class Cubic(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.head = torch.nn.Linear(4, len(noise), bias=False)

            def forward(self, x: Tensor) -> Tensor:
                return self.head(x.pow(torch.arange(4)))

        generator = torch.Generator().manual_seed(0)
        model = seeded(Cubic)
        sets = list[tuple[Tensor, Tensor]]()
        for _ in range(2):
            x = torch.rand(200, 1, generator=generator, dtype=torch.float64)
            errors = torch.randn(200, len(noise), generator=generator, dtype=torch.float64)
            sets.append((x, model(x).detach() + torch.tensor(noise) * errors))
        return model, sets

    @pytest.mark.parametrize("noise", [(0.05,), (0.02, 0.5)], ids=["one output", "noises apart"])
    @pytest.mark.parametrize("view", ["weights", "functions"])
    def test_a_prior_that_data_do_not_determine_stays_near_the_one_before(
        self, noise: tuple[float, ...], view: Any
    ) -> None:
        """As it is over the noise found, over the spread of the targets, or between."""
        model, (train, new) = self.problem(noise)
        posterior = lw.Laplace(lw.Gaussian(), structure=lw.Full(view=view)).fit(model, train)
        tuned = lw.tune(posterior, new)
        over_spread = 10 ** -float(level(new[1].var(0)))
        over_noise = 10 ** float(level(torch.tensor(noise) ** -2))
        assert over_spread < over_noise
        assert 0.03 * over_spread < float(tuned.prior_precisions) < 30.0 * over_noise
        assert tuned.knowledge is not None and tuned.knowledge.factor < 1.0
        assert 0.03 * over_spread < float(tuned.at_knowledge.prior_precisions)
        assert torch.as_tensor(tuned.likelihood.precision).rsqrt().reshape(-1).tolist() == pytest.approx(noise, rel=0.2)

    def test_several_outputs_begin_at_the_noise_of_residuals_and_every_round_at_the_prior_before(self) -> None:
        model, (train, new) = self.problem((0.02, 0.5))
        posterior = lw.Laplace(lw.Gaussian(), prior=lw.Isotropic(7.0), structure=lw.Full()).fit(model, train)
        trace = lw.tune(posterior, new).trace
        residuals = (new[1] - model(new[0]).detach()).square().mean(0)
        assert trace[0].noise_precision == pytest.approx((1 / residuals).tolist(), rel=1e-6)
        over_noise = [
            step.prior_precision[0] / 10 ** float(level(torch.tensor(step.noise_precision))) for step in trace
        ]
        strongest = [ratio for ratio in over_noise if ratio == pytest.approx(7e6, rel=1e-6)]
        assert len(strongest) > 1 and max(over_noise) < 7e6 * (1 + 1e-6)

    @pytest.mark.parametrize(("times", "kept"), [(1.0, True), (1.1, True), (1.25, False), (3.0, False)])
    def test_rounds_end_at_the_network_only_where_it_is_better_by_two_nats(self, times: float, kept: bool) -> None:
        """Noise precisions that are so many times those of the residuals, and hardly another uncertainty."""
        model, (train, new) = self.problem((0.02, 0.5))
        residuals = (new[1] - model(new[0]).detach()).square().mean(0)
        likelihood = lw.Gaussian(tuple((times / residuals).tolist()))
        posterior = lw.Laplace(likelihood, prior=lw.Isotropic(1e9), structure=lw.Full()).fit(model, train)
        plain = 0.5 * float((1 + (2 * math.pi * residuals).log()).sum())
        assert (200 * (nll(posterior, new) - plain) < 2.0) == kept
        rule = lw.Validation(new).noise_rule()
        assert rule is not None
        ended = rule.ended(posterior)
        assert (ended is posterior) == kept
        if not kept:
            assert float(ended.prior_precisions) == pytest.approx(10 ** float(12 - level(residuals)))
            assert nll(ended, new) == pytest.approx(plain, rel=1e-6)

    @pytest.mark.parametrize(
        ("decades", "price"),
        [(0.0, 0.0), (3.0, 1.125), (-1.0, 0.0), (-2.0, 0.0), (-4.0, 0.5), (-5.0, 1.125), (6.5, 2.0)],
    )
    def test_the_price_of_a_prior_is_that_of_a_log_normal_one_of_two_decades(
        self, decades: float, price: float
    ) -> None:
        """Over the noise, and where that is a hundredth of the spread of the targets it may be weaker by two decades.

        Beyond a millionfold is the network itself.
        """
        model, (train, new) = self.problem((0.05,))
        targets = torch.tensor([0.0, 2.0], dtype=torch.float64).repeat(100)[:, None]
        for noise in (1.0, 10.0):
            posterior = lw.Laplace(lw.Gaussian(100.0 / noise), structure=lw.Full()).fit(model, train)
            data = held_out_outputs(posterior, [Batch(new[0], targets)], (1e-6, 1e6))
            log_factor = math.log(10.0**decades)
            there = Point(data, lw.Gaussian(100.0), log_factor, data.moments(0.0), noise).trial("probit")
            assert 200 * there.moving_penalty == pytest.approx(price, abs=1e-9)
            assert there.objective == pytest.approx(there.loss + there.moving_penalty, rel=1e-12)

    def test_targets_that_vary_less_than_their_noise_leave_the_price_of_the_ratio(self) -> None:
        """One of two outputs is constant, and has no say."""
        model, (train, new) = self.problem((0.05, 0.05))
        posterior = lw.Laplace(lw.Gaussian(100.0), structure=lw.Full()).fit(model, train)
        for varies, price in ((1.0, 0.125), (0.05, 0.5)):
            targets = torch.tensor([[0.0, 3.0], [2.0 * varies, 3.0]], dtype=torch.float64).repeat(100, 1)
            data = held_out_outputs(posterior, [Batch(new[0], targets)], (1e-6, 1e6))
            there = Point(data, posterior.likelihood, math.log(1e-2), data.moments(0.0)).trial("probit")
            assert 200 * there.moving_penalty == pytest.approx(price, abs=1e-9)

    def test_a_precision_without_a_variance_is_passed_over(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where rounding leaves none, as under the weakest priors."""
        model, (train, new) = self.problem((0.05,))
        posterior = lw.Laplace(lw.Gaussian(), structure=lw.Full()).fit(model, train)
        moments = Contracted.moments

        def none_where_weak(self: Any, log_factor: float) -> Any:
            weak = log_factor < -5.0
            found = moments(self, log_factor)
            return [part.with_compact_covariance(-part.compact_covariance) for part in found] if weak else found

        monkeypatch.setattr(Contracted, "moments", none_where_weak)
        tuned = lw.tune(posterior, new)
        assert any(math.isinf(step.validation_nll) for step in tuned.trace)
        assert math.isfinite(tuned.trace[-1].validation_nll)

    def test_one_that_fails_in_another_process_is_passed_over_in_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Else the sums of one would be added to other sums of the other."""
        model, (train, new) = self.problem((0.05,))
        posterior = lw.Laplace(lw.Gaussian(), structure=lw.Full()).fit(model, train)
        added = Contracted.added
        failures = list[float]()

        def of_two(self: Any, *sums: float) -> list[float]:
            if sums != (0.0,):
                return added(self, *sums)
            failures.append(float(len(failures) > 5))
            return [failures[-1]]

        monkeypatch.setattr(Contracted, "added", of_two)
        steps = lw.tune(posterior, new).trace[:-1]
        passed_over = [float(math.isinf(step.validation_nll)) for step in steps]
        assert passed_over == failures[1 : 1 + len(steps)] and sum(passed_over) > 0  # the first is of the network

    def test_the_network_is_taken_where_it_is_better_by_more_than_error_bars_are_worth(self) -> None:
        model, (train, new) = self.problem((0.05,))
        posterior = lw.Laplace(lw.Gaussian(400.0), structure=lw.Full()).fit(model, train)
        exact = new[0], model(new[0]).detach()
        with warnings.catch_warnings():
            warnings.simplefilter("error", ConvergenceWarning)
            tuned = lw.tune(posterior, lw.Validation(exact, noise=False))
        alone = lw.Gaussian(400.0).nll(exact[1], exact[1]).mean()
        assert 0.0 < 200 * (nll(tuned, exact) - float(alone)) < 2.0
        with pytest.warns(ConvergenceWarning, match="the strongest prior tried"):
            lw.tune(posterior, lw.Validation(exact, noise=False, bounds=(0.1, 10.0)))
        twice = exact[0].repeat(2, 1), exact[1].repeat(2, 1)
        with pytest.warns(ConvergenceWarning, match="no added uncertainty"):
            tuned = lw.tune(posterior, lw.Validation(twice, noise=False))
        assert float(tuned.prior_precisions) == pytest.approx(400e12)


@pytest.mark.parametrize("likelihood", [lw.Poisson(), lw.NegativeBinomial(2.0)], ids=["poisson", "negative binomial"])
def test_expected_counts_stay_those_of_the_network_where_counts_ask_for_any_variance(likelihood: Any) -> None:
    """Counts spread far more than they do around any rate, which the weakest priors explain best."""
    generator = torch.Generator().manual_seed(0)
    model = seeded(lambda: torch.nn.Linear(2, 1))
    x, new = (torch.randn(60, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    spread = 3.0 * torch.randn(60, 1, generator=generator, dtype=torch.float64)
    counts = torch.poisson((model(new).detach() + spread).exp(), generator=generator)
    few = x[:3]
    posterior = lw.Laplace(likelihood).fit(model, (few, torch.poisson(model(few).detach().exp(), generator=generator)))
    weakest = posterior.with_hyperparameters(lw.Isotropic(1e-3), likelihood)
    assert nll(weakest, (new, counts)) < nll(posterior, (new, counts))
    tuned = lw.tune(posterior, (new, counts))
    expected = float(tuned.predict(new).mean.sum())
    assert 1.01 < expected / float(model(new).exp().sum()) < 1.5 * (1 + 1e-6)


class TestWithoutAPriorForCounts:
    """Every prior within the bounds has expected counts that leave those of the network."""

    x = normal(60, 2)
    model = seeded(lambda: torch.nn.Linear(2, 1))

    def test_the_strongest_is_taken_with_a_warning_and_error_bars_as_it_has(self) -> None:
        counts = torch.poisson(self.model(self.x).detach().exp(), generator=torch.Generator().manual_seed(0))
        recipe = lw.Laplace(lw.Poisson(), prior=lw.Isotropic(0.3))
        posterior = recipe.fit(self.model, (self.x[:2], counts[:2]))
        with pytest.warns(ConvergenceWarning, match=r"more than 1\.5 times .* Try bounds= that reach stronger"):
            tuned = lw.tune(posterior, lw.Validation((self.x, counts), bounds=(0.5, 2.0)))
        assert float(tuned.prior_precisions) == pytest.approx(0.6)
        assert tuned.knowledge is not None and tuned.knowledge.factor == 1.0

    def test_their_inflation_is_of_what_is_predicted(self) -> None:
        counts = torch.poisson(self.model(self.x).detach().exp(), generator=torch.Generator().manual_seed(0))
        posterior = lw.Laplace(lw.Poisson()).fit(self.model, (self.x[:9], counts[:9]))
        data = held_out_outputs(posterior, [Batch(self.x, counts)], (1e-6, 1e6))
        rates = self.model(self.x).detach().exp()
        expected = float(posterior.predict(self.x).mean.sum() / rates.sum())
        assert inflation(data, data.moments(0.0)) == pytest.approx(expected, rel=1e-6) and expected > 1.02

    def test_rates_of_nothing_are_not_inflated(self) -> None:
        none = torch.zeros(60, 1, dtype=torch.float64)
        silent = deepcopy(self.model)
        silent.bias.data -= 800.0
        posterior = lw.Laplace(lw.Poisson()).fit(silent, (self.x, none))
        assert float(lw.tune(posterior, (self.x, none)).prior_precisions) == pytest.approx(1.0, rel=1e-2)


def data_of_solves(case: Problem) -> tuple[Tensor, Tensor]:
    return normal(8, 3, seed=5), case.y[:8]


class TestSolves:
    @pytest.mark.parametrize("structure", [lw.Sampled(5, EXACT), lw.MatrixFree(EXACT)], ids=["sampled", "matrix-free"])
    @pytest.mark.parametrize("name", ["gaussian", "categorical"])
    def test_every_loss_is_that_of_evaluate(self, name: str, structure: Any) -> None:
        """A few precisions are enough, and nothing is asked that was not needed."""
        case = problem(name)
        posterior = case.fit(lw.Laplace(case.likelihood, structure=structure))
        tuned = lw.tune(posterior, lw.Validation(data_of_solves(case), bounds=(1e-1, 1e2)))
        assert len(tuned.trace) <= 4 + 2 + 1
        for step in tuned.trace:
            there = at_step(posterior, step)
            there = there if step.link is None else there.with_link(step.link, step.temperature or 1.0)
            assert step.validation_nll == pytest.approx(nll(there, data_of_solves(case)), rel=1e-6)
            assert step.log_marginal is None and step.effective_dimension is None
        assert type(tuned) is type(posterior)

    def test_the_draws_of_one_precision_are_dropped_before_the_next_is_solved(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        case, solve = problem("categorical"), lw.solvers.CG.solve
        solved: list[weakref.ref[Tensor]] = []
        alive: list[int] = []

        def watched(*args: Any, **options: Any) -> Any:
            alive.append(sum(draws() is not None for draws in solved))
            solution = solve(*args, **options)
            solved.append(weakref.ref(solution.value))
            return solution

        monkeypatch.setattr(lw.solvers.CG, "solve", watched)
        posterior = case.fit(lw.Laplace(case.likelihood, structure=lw.Sampled(5)))
        lw.tune(posterior, lw.Validation(data_of_solves(case)))
        assert len(alive) >= 4 and max(alive) <= 1

    def test_many_draws_choose_as_the_dense_matrices_do(self) -> None:
        case = problem("categorical")
        chosen = []
        for structure in (lw.Sampled(800, EXACT), lw.Full(view="weights")):
            posterior = case.fit(lw.Laplace(case.likelihood, structure=structure))
            method = lw.Validation(data_of_solves(case), bounds=(1e-1, 1e2), link="qmc")
            chosen.append(lw.tune(posterior, method).trace[-1])
        assert chosen[0].validation_nll == pytest.approx(chosen[1].validation_nll, rel=0.02)


class TestWhatItSays:
    def test_at_the_strong_end_that_no_uncertainty_is_wanted(self) -> None:
        """Labels that are the network's own: all it says is right."""
        _, posterior = fit("categorical", "kfac")
        x = normal(8, 3, seed=5)
        y = posterior.predict(x).labels
        with pytest.warns(ConvergenceWarning, match=r"of 100 \(.*\): these data want no added .* Try the net"):
            lw.tune(posterior, lw.Validation((x, y), bounds=NARROW, temperature=False))
        with pytest.warns(ConvergenceWarning, match=r"of 1e\+12 \(.*\): .* but temperature scaling, .* by 0."):
            tuned = lw.tune(posterior, (x, y))
        assert 0.1 < tuned.temperature < 1.0

    @pytest.mark.parametrize(
        ("losses", "said"),
        [
            ([5.0, 4.0, 3.0], r"weakest prior tried is the best, .* \(3 nats, 9 by the .*reach weaker priors"),
            ([10.0, 9.5, 11.0], r"worse than the network .*\(9.5 nats, 9 by the network alone"),
        ],
    )
    def test_at_the_weak_end_that_more_is_wanted_and_where_it_harms(
        self, monkeypatch: pytest.MonkeyPatch, losses: list[float], said: str
    ) -> None:
        """Losses are given: of three precisions, perhaps of some between, and of the network alone."""
        case, posterior = fit("categorical", "kfac")
        given = chain(losses, repeat(12.0))

        def losses_of(_: Any, moments: Any, *__: Any, temperature: float, either: bool) -> Tensor:
            if temperature != 1.0:
                return torch.full((8,), 20.0)
            return torch.full((8,), next(given) if float(moments.variance.sum()) else 9.0)

        monkeypatch.setattr("lapwing.tuning.held_out.outputs.held_out_losses", losses_of)
        with pytest.warns(ConvergenceWarning, match=said):
            lw.tune(posterior, lw.Validation(held_out(case), bounds=(1.0, 10.0**1.6), link="probit", temperature=False))

    def test_where_no_weaker_prior_is_worth_a_trial_that_none_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The weaker the better, and a millionth of the precision is the weakest there is by default."""
        case, posterior = fit("categorical", "kfac")
        falling = count(8.0, -0.01)

        def losses_of(_: Any, moments: Any, *__: Any, temperature: float, either: bool) -> Tensor:
            if temperature != 1.0:
                return torch.full((8,), 20.0)
            return torch.full((8,), next(falling) if float(moments.variance.sum()) else 9.0)

        monkeypatch.setattr("lapwing.tuning.held_out.outputs.held_out_losses", losses_of)
        with pytest.warns(ConvergenceWarning, match=r"weakest prior .* Try weights=All\(\) if fewer"):
            lw.tune(posterior, lw.Validation(held_out(case), link="probit", temperature=False))

    @pytest.mark.parametrize("bounds", [(1.0, 10.0), (1e6, 1e7), (1e-6, 1e-5)])
    def test_the_precision_that_is_told_is_the_one_that_is_taken(self, bounds: tuple[float, float]) -> None:
        """With the noise, whose precision is far from 1 here."""
        model = seeded(lambda: torch.nn.Linear(3, 1))
        x, new = normal(40, 3), normal(40, 3, seed=1)
        train, data = ((of, model(of).detach() + 0.01 * normal(40, 1, seed=4 + k)) for k, of in enumerate((x, new)))
        posterior = lw.Laplace(lw.Gaussian(), structure=lw.Full()).fit(model, train)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ConvergenceWarning)
            tuned = lw.tune(posterior, lw.Validation(data, bounds=bounds))
        told = f"a precision of {float(tuned.prior_precisions):.3g} ("
        assert tuned.noise_scale > 1e3 and any(told in str(each.message) for each in caught)

    def test_nothing_where_the_best_lies_inside(self) -> None:
        case, posterior = fit("gaussian")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tuned = lw.tune(posterior, held_out(case))
        tried = [step.prior_precision[0] for step in tuned.trace]
        assert min(tried) < float(tuned.prior_precisions) < max(tried)

    @pytest.mark.parametrize("bounds", [(1.0, 1.0), (0.0, 1.0), (2.0, 1.0), (1.0, math.inf), (math.nan, 1.0)])
    def test_refuses_bounds_without_a_range(self, bounds: Any) -> None:
        with refused(ConfigError, "low < high"):
            lw.Validation((normal(4, 3), normal(4, 2)), bounds=bounds)

    def test_refuses_data_without_a_target_and_labels_of_another_kind(self) -> None:
        _, posterior = fit("categorical")
        with refused(DataError, "ignored"):
            lw.tune(posterior, (normal(4, 3), torch.full((4,), -100)))
        with pytest.raises(DataError, match="labels"):
            lw.tune(posterior, (normal(4, 3), labels(4, classes=3) + 7))
