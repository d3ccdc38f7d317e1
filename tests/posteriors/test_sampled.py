"""What a posterior made of draws does beside the laws: when it solves, where from, and what it refuses."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.ground.errors import ConfigError, MismatchError, TooLargeError, UnsupportedError
from lapwing.ground.results import Solution
from lapwing.posteriors import Step
from lapwing.posteriors.base import JOINT
from lapwing.posteriors.effective_dimension import by_draws
from lapwing.posteriors.log_det_integral import log_det_integral
from lapwing.predictive import Moments
from tests.checker import unchecked
from tests.meter import Meter
from tests.posterior_cases import limited, normal, problem, refused

EXACT = lw.solvers.CG(rtol=1e-11)


@dataclass(frozen=True)
class Spy(lw.solvers.Solver):
    """Conjugate gradients that remember what they were asked."""

    starts: list[Tensor | None] = field(default_factory=list[Tensor | None], compare=False)

    def solve(self, problem: Any, b: Tensor, *, initial: Tensor | None = None) -> Solution:
        self.starts.append(initial)
        return EXACT.solve(problem, b, initial=initial)


def fitted(
    samples: int = 4, solver: Any = EXACT, name: str = "images", **options: Any
) -> lw.posteriors.SampledPosterior:
    case = problem(name)
    structure = lw.Sampled(samples, solver, **options)
    posterior = case.fit(lw.Laplace(case.likelihood, prior=lw.Isotropic(0.7), structure=structure))
    assert isinstance(posterior, lw.posteriors.SampledPosterior)
    return posterior


class TestSolves:
    def test_once_and_only_when_draws_are_asked_for(self) -> None:
        spy, x = Spy(), problem("images").new
        posterior = fitted(solver=spy)
        moved = posterior.with_hyperparameters(lw.Isotropic(2.0), posterior.likelihood)
        assert not spy.starts and posterior.samples == 4
        for _ in range(2):
            moved.predict(x)
            moved.sample(3)
            moved.effective_dimension()
        assert len(spy.starts) == 1

    def test_start_at_draws_from_the_prior(self) -> None:
        spy = Spy()
        posterior = fitted(solver=spy)
        _ = posterior.draws
        assert spy.starts[0] is not None
        torch.testing.assert_close(spy.starts[0], posterior.perturbation.prior / 0.7**0.5)

    def test_go_on_from_the_present_draws_in_units_of_the_prior(self) -> None:
        spy = Spy()
        posterior = fitted(solver=spy)
        here = posterior.draws
        once = posterior.with_hyperparameters(lw.Layerwise((7.0, 0.7, 2.8)), posterior.likelihood)
        twice = once.with_hyperparameters(lw.Isotropic(70.0), posterior.likelihood)
        _ = twice.draws
        assert len(spy.starts) == 2
        torch.testing.assert_close(spy.starts[1], here / 10)
        expected = EXACT.solve(twice.problem, twice.perturbation.right_hand_side(twice.problem)).value
        torch.testing.assert_close(twice.draws, expected)

    def test_are_spared_where_nothing_changed(self) -> None:
        spy = Spy()
        posterior = fitted(solver=spy)
        gamma = posterior.effective_dimension()
        step = Step(-1.0, (0.7,), None, 1.0)
        same = posterior.with_hyperparameters(lw.Isotropic(0.7), posterior.likelihood, (step,))
        assert same.trace == (step,) and same.draws is posterior.draws and len(spy.starts) == 1
        assert same.effective_dimension() == gamma
        other = same.with_hyperparameters(lw.Isotropic(0.7 + 1e-12), posterior.likelihood)
        assert other.draws is not same.draws and other.output_squares is not same.output_squares

    def test_are_not_where_the_noise_alone_moved(self) -> None:
        posterior = fitted(name="gaussian")
        here = posterior.draws
        there = posterior.with_hyperparameters(lw.Isotropic(0.7), lw.Gaussian(250.0))
        expected = EXACT.solve(there.problem, there.perturbation.right_hand_side(there.problem)).value
        torch.testing.assert_close(there.draws, expected)
        assert not torch.allclose(there.draws, here, rtol=0.1)

    def test_start_where_they_are_told(self) -> None:
        spy = Spy()
        posterior = fitted(solver=spy)
        start = torch.ones_like(posterior.perturbation.prior)
        again = posterior.with_hyperparameters(lw.Isotropic(3.0), posterior.likelihood).restarted(start)
        _ = again.draws
        assert spy.starts == [start] and again.prior == lw.Isotropic(3.0)

    def test_share_what_products_keep(self) -> None:
        posterior = fitted()
        _ = posterior.draws
        moved = posterior.with_hyperparameters(lw.Isotropic(3.0), posterior.likelihood)
        assert moved.problem.curvature is posterior.problem.curvature
        assert moved.problem.prior.values.max() == 3.0 and moved.problem.scale == 1.0

    @pytest.mark.parametrize("ask", ["draws", "predict", "evidence"])
    def test_that_stop_short_warn_with_their_residual(self, ask: str) -> None:
        posterior = fitted(solver=lw.solvers.CG(rtol=1e-10, max_iterations=1))
        with pytest.warns(lw.ConvergenceWarning, match="relative residual of"):
            match ask:
                case "draws":
                    _ = posterior.draws
                case "predict":
                    posterior.predict(problem("images").new)
                case _:
                    posterior.log_marginal()


class TestDraws:
    def test_come_each_once_before_any_comes_again(self, generator: torch.Generator) -> None:
        posterior = fitted(5)
        there = posterior.network.weights + posterior.draws.mT
        drawn = posterior.sample(12, generator=generator)
        for part in (drawn[:5], drawn[5:10]):
            order = torch.cdist(part, there).argmin(1)
            assert sorted(order.tolist()) == list(range(5))
            torch.testing.assert_close(part, there[order])
        assert drawn.shape == (12, posterior.network.size)

    def test_depend_on_the_seed_alone(self) -> None:
        assert torch.equal(fitted(3, seed=1).draws, fitted(3, seed=1).draws)
        assert not torch.allclose(fitted(3, seed=1).draws, fitted(3, seed=2).draws)

    def test_of_other_noise(self, generator: torch.Generator) -> None:
        posterior = fitted(3)
        other = posterior.resampled(6, generator=generator)
        assert other.draws.shape == (posterior.network.size, 6)
        assert not torch.allclose(other.draws[:, :3], posterior.draws)
        assert other.problem is posterior.problem and other.trace == posterior.trace
        covariance = other.predict(problem("images").new).logits.covariance
        assert torch.linalg.matrix_rank(covariance).max() <= 3

    def test_are_networks_no_more_than_there_are(self) -> None:
        posterior, x = fitted(3), problem("images").new
        outputs = posterior.predict(x, linearised=False).logits
        assert outputs.values.shape == (3, 4, 3)
        assert posterior.predict(x, linearised=False, samples=2).logits.values.shape == (2, 4, 3)

    def test_in_regression_take_no_link(self) -> None:
        posterior, x = fitted(name="gaussian"), problem("gaussian").new
        assert isinstance(posterior.predict(x, "mc").outputs, Moments)
        assert torch.equal(posterior.predict(x, "mc").std, posterior.predict(x).std)

    def test_of_inputs_in_several_chunks(self) -> None:
        posterior, x = fitted(), problem("images").new
        whole = posterior.predict(x, joint=True).logits
        pieces = limited(posterior, training=1).predict(x, joint=True).logits
        torch.testing.assert_close(pieces.covariance, whole.covariance)
        torch.testing.assert_close(pieces.mean, whole.mean)

    @pytest.mark.parametrize("room", [1, 2**20])
    def test_of_several_choices_at_once(self, room: int) -> None:
        posterior, x = limited(fitted(), draw_bytes=room), problem("images").new
        other = posterior.with_hyperparameters(lw.Isotropic(5.0), posterior.likelihood)
        found = posterior.outputs_each(x, [posterior, other])
        for moments, choice in zip(found, (posterior, other), strict=True):
            torch.testing.assert_close(moments.covariance, choice.predict(x).logits.covariance)
        assert (found[0].variance > found[1].variance).any()


class TestNumbers:
    def test_of_one_draw_have_no_known_error(self) -> None:
        posterior = fitted(1)
        for estimate in (posterior.log_marginal(), posterior.effective_dimension()):
            assert math.isfinite(estimate.value) and estimate.stderr == math.inf
        assert posterior.effective_dimension() == posterior.effective_dimension("outputs")

    def test_of_the_evidence_are_half_those_of_its_log_determinant(self) -> None:
        posterior = fitted(name="gaussian")
        ratios, _ = log_det_integral(posterior.problem, posterior.perturbation, EXACT)
        estimate = posterior.log_marginal()
        assert estimate.stderr == pytest.approx(0.5 * float(ratios.std()) / 2)
        plain = posterior.totals.nll + 0.35 * float(posterior.network.weights.square().sum())
        assert estimate.value == pytest.approx(-plain - 0.5 * float(ratios.mean()))

    def test_of_the_outputs_scale_with_the_noise(self) -> None:
        posterior = fitted(name="gaussian").with_hyperparameters(lw.Isotropic(0.7), lw.Gaussian(5.0))
        squares = posterior.output_squares
        moved = posterior.draws * (posterior.problem.curvature @ posterior.draws)
        torch.testing.assert_close(squares, moved.sum(0, keepdim=True))
        assert posterior.effective_dimension("outputs").value == pytest.approx(2 * float(squares.mean()))

    @pytest.mark.parametrize("prior", [lw.Isotropic(0.7), lw.Layerwise((0.1, 8.0))])
    def test_and_of_the_weights_are_chosen_between_as_tuning_does(self, prior: Any) -> None:
        case = problem("gaussian")
        for seed in range(10):
            structure = lw.Sampled(6, lw.solvers.CG(), seed=seed)
            posterior = case.fit(lw.Laplace(case.likelihood, prior=prior, structure=structure))
            assert isinstance(posterior, lw.posteriors.SampledPosterior)
            group, diagonal = prior.groups(posterior.network.uncertain)[0], posterior.problem.prior.values
            told = by_draws(posterior.draws, diagonal, group, lambda it=posterior: it.noise_scale * it.output_squares)
            found = posterior.effective_dimension()
            assert found.value == pytest.approx(told.total, rel=1e-12)
            assert found.stderr == pytest.approx(told.error, rel=1e-12)


class TestRefusals:
    def test_of_no_draws(self) -> None:
        with refused(ConfigError, "samples of at least 1"):
            lw.Sampled(0)
        with refused(ConfigError, "samples of at least 1"):
            fitted().resampled(0)
        with refused(ConfigError, "samples of at least 1"):
            fitted().sample(0)
        with refused(ConfigError, "samples of at least 1"):
            fitted().predict(problem("images").new, "mc", samples=0)

    def test_of_seeds_for_generators(self) -> None:
        seed: Any = 3
        with unchecked(), refused(ConfigError, "generator="):
            fitted().resampled(2, generator=seed)

    def test_of_noise_that_does_not_fit(self) -> None:
        with refused(TooLargeError, "17,179,869,184 bytes"):
            fitted(10**10)
        posterior = fitted()
        problem_ = posterior.problem
        needed = 3 * (2 * problem_.size + problem_.root.shape[1]) * 8
        with refused(TooLargeError, f"need {needed:,} bytes"):
            posterior.resampled(3, max_bytes=needed - 1)
        assert posterior.resampled(3, max_bytes=needed).samples == fitted(3, max_bytes=needed).samples == 3

    def test_of_estimators_there_are_not(self) -> None:
        with refused(ConfigError, "'auto', 'outputs', 'weights'"):
            unchecked: Any = inspect.unwrap(
                lw.posteriors.SampledPosterior.effective_dimension
            )  # without the tests' own checker
            unchecked(fitted(), "best")

    def test_of_a_joint_covariance_that_does_not_fit(self) -> None:
        posterior, x = fitted(), normal(8000, 1, 5, 5)
        assert (3 * len(x)) ** 2 * 8 > JOINT
        with refused(TooLargeError, f"{JOINT:,} bytes"):
            posterior.predict(x, joint=True)
        assert posterior.predict(x, "mc", joint=True).probs.shape == (8000, 3)

    @pytest.mark.parametrize("ask", ["predict", "draws", "product"])
    def test_of_a_network_that_was_written_to(self, ask: str) -> None:
        posterior = fitted()
        posterior.network.weights.sum()
        with torch.no_grad():
            next(posterior.network.module.parameters()).add_(1.0)
        with pytest.raises(MismatchError, match="written to since"):
            match ask:
                case "predict":
                    posterior.predict(problem("images").new)
                case "draws":
                    _ = posterior.draws
                case _:
                    _ = posterior.precision_operator @ posterior.network.weights

    def test_of_what_needs_the_data_without_them(self) -> None:
        posterior = fitted()
        posterior = replace(posterior, model=replace(posterior.model, source=None))
        with refused(UnsupportedError, "its training data"):
            posterior.predict(problem("images").new)


def test_draws_that_are_kept_count_every_group_anew() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double().eval()
    x, y = torch.randn(20, 2).double(), torch.randint(0, 2, (20,))
    posterior = lw.Laplace(lw.Categorical(), structure=lw.Sampled(samples=3)).fit(model, (x, y))
    whole = posterior.output_squares
    regrouped = posterior.with_hyperparameters(lw.Layerwise(1.0), posterior.likelihood)
    assert len(regrouped.prior_precisions) == len(regrouped.output_squares) > 1
    torch.testing.assert_close(regrouped.output_squares.sum(0), whole.sum(0))


def test_draws_of_many_outputs_are_made_and_predict_without_a_matrix_of_them() -> None:
    """Neither a root of the output Hessian nor a covariance is made, each of which would take n c² numbers."""
    n, c = 4, 300
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, c)).double()
    x, y = normal(n, 2), torch.arange(n)
    structure = lw.Sampled(6, solver=lw.solvers.CG(preconditioner=None))
    with Meter() as meter:
        posterior: Any = lw.Laplace(lw.Categorical(), structure=structure).fit(model, (x, y))
        predictions = {link: posterior.predict(x, link).probs for link in ("qmc", "bridge", "probit", "pairwise")}
    assert meter.largest < n * c**2 * 8
    moments = posterior.outputs(x)
    factor = posterior.training.on(x).push(posterior.draws).movedim(0, -1) / 6**0.5
    torch.testing.assert_close(moments.covariance, factor @ factor.mT)
    written = Moments(moments.mean, moments.covariance)
    for link, probs in predictions.items():
        near = {"rtol": 0, "atol": 2e-3} if link == "qmc" else {}  # its points are others for another root
        torch.testing.assert_close(probs, posterior.likelihood.predictive(written, link).probs, **near)
