"""EM ends where the dense evidence is largest, whatever finds the mode and the effective dimension."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import lapwing as lw
from lapwing.ground import probes
from lapwing.ground.errors import ConfigError, ConvergenceWarning, DataError, UnsupportedError
from lapwing.likelihoods import Gaussian
from lapwing.linear.tangent import Mode, Tangent
from lapwing.tuning.em.expectation import warn_unless_found
from tests.posterior_cases import STRUCTURES, Linearised, Problem, mlp, normal, portrait, problem, refused
from tests.tuning.em.cases import Regression, best, learnt

TOY = Regression()
LARGE = Regression(60, (18, 12))
UNEQUAL = Regression(sizes=(0.2, 2.0))
PRECISE: dict[str, Any] = {"tolerance": 1e-4, "steps": 200}


def precision_of(posterior: lw.Posterior) -> float:
    assert isinstance(posterior.likelihood, Gaussian) and isinstance(posterior.likelihood.precision, float)
    return posterior.likelihood.precision


class TestExact:
    @pytest.mark.parametrize("noise", [False, True])
    def test_ends_at_the_maximum_of_the_dense_evidence(self, noise: bool) -> None:
        tuned = lw.tune(TOY.fit(), lw.EM(noise=noise, **PRECISE))
        precisions, best_noise = best(TOY, noisy=noise)
        torch.testing.assert_close(tuned.prior_precisions, precisions, rtol=2e-4, atol=0)
        assert precision_of(tuned) == pytest.approx(best_noise, rel=2e-4)

    def test_every_group_ends_at_the_maximum(self) -> None:
        tuned = lw.tune(UNEQUAL.fit(prior=lw.Layerwise(500.0)), lw.EM(**PRECISE))
        precisions, noise = best(UNEQUAL, 2, noisy=True)
        torch.testing.assert_close(tuned.prior_precisions, precisions, rtol=2e-4, atol=0)
        assert precision_of(tuned) == pytest.approx(noise, rel=2e-4)
        assert precisions[0] > 10 * precisions[1]

    def test_is_near_in_five_steps_from_far_too_strong_a_prior(self) -> None:
        tuned = lw.tune(LARGE.fit(), lw.EM(noise=False))
        alphas = [step.prior_precision[0] for step in tuned.trace]
        assert alphas[0] == 500.0 and alphas == sorted(alphas, reverse=True) and len(alphas) <= 5 + 1
        assert alphas[-1] == pytest.approx(float(best(LARGE)[0]), rel=0.01)

    @pytest.mark.parametrize("noise", [True, False])
    def test_the_trace_says_what_the_dense_model_says(self, noise: bool) -> None:
        tuned = lw.tune(UNEQUAL.fit(prior=lw.Layerwise(500.0)), lw.EM(noise=noise))
        for step in tuned.trace:
            alpha, rho = torch.tensor(step.prior_precision).double(), step.noise_precision
            assert rho is not None and step.log_marginal == pytest.approx(UNEQUAL.evidence(alpha, rho), rel=1e-5)
            mode, gamma = UNEQUAL.posterior(alpha, rho)
            assert step.effective_dimension == pytest.approx(float(gamma.sum()), rel=1e-6)
            norms = [float(part.square().sum()) for part in mode.split(UNEQUAL.parts)]
            assert step.mode_norms == pytest.approx(norms, rel=0.01)
            misfit = float((UNEQUAL.y[:, 0] - UNEQUAL.x @ mode).square().sum())
            nll = 0.5 * misfit + 0.5 * UNEQUAL.examples * math.log(2 * math.pi)
            assert step.mode_nll == pytest.approx(nll, rel=1e-3)
            assert step.effective_dimension_error is None
        torch.testing.assert_close(torch.tensor(tuned.trace[-1].prior_precision).double(), tuned.prior_precisions)
        assert tuned.trace[-1].noise_precision == pytest.approx(precision_of(tuned), rel=1e-12)
        assert (precision_of(tuned) == 1.0) is not noise

    @pytest.mark.parametrize(
        ("name", "structure", "prior"),
        [
            ("gaussian", "kfac", lw.Isotropic(1.0)),
            ("categorical", "full-functions", lw.Isotropic(1.0)),
            ("categorical", "full-weights", lw.GPrior(1.0)),
        ],
    )
    @pytest.mark.no_cover
    def test_the_fixed_point_equations_hold_at_the_mode(self, name: str, structure: str, prior: Any) -> None:
        """``α |w*|² = γ`` with w* the mode for the α it ends at."""
        case = learnt(name)
        posterior = case.fit(lw.Laplace(case.likelihood, structure=STRUCTURES[structure], prior=prior))
        tuned = lw.tune(posterior, lw.EM(tolerance=1e-3, steps=100))
        layout, like = tuned.network.uncertain, tuned.network.like
        mode = Tangent(tuned.training).mode(tuned.prior.operator(layout, like), tuned.noise_scale, rtol=1e-6)
        norms = tuned.prior.square_norms(mode.weights, layout)
        gamma = tuned.evidence.effective_dimensions(tuned.prior_precisions, tuned.scale)
        torch.testing.assert_close(tuned.prior_precisions * norms, gamma, rtol=4e-3, atol=1e-6)
        assert tuned.trace[-1].mode_norms == pytest.approx(norms.tolist(), rel=2e-3)
        assert type(tuned.prior) is type(prior) and gamma.min() > 0.5
        if name == "gaussian":
            assert float(tuned.scale) * mode.misfit == pytest.approx(120 - float(gamma.sum()), rel=2e-3)

    def test_the_simplified_target_has_another_mode(self) -> None:
        case = problem("gaussian")
        posterior = case.fit(lw.Laplace(case.likelihood, structure=lw.Full(view="weights")))
        dense = Linearised(case, posterior.network)
        jacobian = dense.jacobian(case.x).flatten(0, -2)
        precision = 2.5 * jacobian.mT @ jacobian + torch.eye(len(dense.theta)).double()
        offset = dense.outputs(case.x).flatten() - jacobian @ dense.theta
        for target, y in {"affine": case.y.flatten() - offset, "simplified": case.y.flatten()}.items():
            with pytest.warns(ConvergenceWarning):
                step = lw.tune(posterior, lw.EM(target=target, tolerance=1e-6, steps=1)).trace[0]  # type: ignore[arg-type]
            mode = torch.linalg.solve(precision, 2.5 * jacobian.mT @ y)
            assert step.mode_norms == pytest.approx([float(mode.square().sum())], rel=1e-5)

    def test_a_group_the_data_say_nothing_of_is_not_waited_for(self) -> None:
        case = Regression(sizes=(0.0, 1.0))
        tuned = lw.tune(case.fit(prior=lw.Layerwise(1.0)), lw.EM(steps=200))
        assert len(tuned.trace) < 200
        strong, weak = tuned.prior_precisions.tolist()
        assert strong > 100 * weak
        assert tuned.evidence.effective_dimensions(tuned.prior_precisions, tuned.scale)[0] < 3


class TestDraws:
    SOLVERS: tuple[Any, ...] = (
        lw.solvers.CG(),
        lw.solvers.CG(preconditioner=lw.LowRank(8)),
        lw.solvers.SGD(epochs=400, batch=12, rtol=1e-3),
    )

    @pytest.mark.parametrize(("solver", "sampled"), [*zip(SOLVERS, (False, True, False), strict=True)])
    def test_ends_within_five_percent_of_the_maximum_in_five_steps(self, solver: Any, sampled: bool) -> None:
        structure = lw.Sampled(4, solver=solver) if sampled else lw.MatrixFree(solver=solver)
        tuned = lw.tune(LARGE.fit(structure), lw.EM(noise=False))
        assert tuned.prior_precisions.item() == pytest.approx(float(best(LARGE)[0]), rel=0.05)
        assert len(tuned.trace) <= 5 + 1
        assert tuned.trace[-1].log_marginal is None

    @pytest.mark.parametrize("estimator", ["outputs", "weights", "auto"])
    @pytest.mark.no_cover
    def test_many_draws_find_the_precisions_of_every_group_and_of_the_noise(self, estimator: Any) -> None:
        posterior = UNEQUAL.fit(lw.MatrixFree(), prior=lw.Layerwise(500.0))
        tuned = lw.tune(posterior, lw.EM(estimator=estimator, samples=3000))
        precisions, noise = best(UNEQUAL, 2, noisy=True)
        torch.testing.assert_close(tuned.prior_precisions, precisions, rtol=0.06, atol=0)
        assert precision_of(tuned) == pytest.approx(noise, rel=0.02)

    def test_classes_need_no_more(self) -> None:
        case = learnt("categorical")
        exact, drawn = (
            lw.tune(case.fit(lw.Laplace(case.likelihood, structure=it)), lw.EM(samples=500))
            for it in (lw.Full(view="weights"), lw.MatrixFree())
        )
        assert drawn.prior_precisions.item() == pytest.approx(exact.prior_precisions.item(), rel=0.1)

    def test_the_error_of_the_effective_dimension_is_told(self) -> None:
        step = lw.tune(TOY.fit(lw.MatrixFree()), lw.EM(noise=False, samples=100)).trace[-1]
        gamma = float(TOY.posterior(torch.tensor(step.prior_precision).double())[1].sum())
        assert step.effective_dimension_error is not None and 0 < step.effective_dimension_error < 0.3
        assert abs(step.effective_dimension - gamma) < 4 * step.effective_dimension_error

    def test_the_noise_depends_on_the_seed_alone(self) -> None:
        structure = lw.MatrixFree(solver=lw.solvers.CG())
        once, again, other = (lw.tune(TOY.fit(structure), lw.EM(seed=seed)).trace for seed in (0, 0, 1))
        assert once == again != other

    def test_draws_of_a_sampled_posterior_keep_their_noise_and_are_handed_over(self) -> None:
        method, solver = lw.EM(samples=16, noise=False), lw.solvers.CG(rtol=1e-8)
        tuned = lw.tune(TOY.fit(lw.Sampled(20, solver, seed=1)), method)
        assert tuned.initial is not None
        torch.testing.assert_close(tuned.initial[:, :16], tuned.draws[:, :16], rtol=1e-4, atol=1e-6)
        fresh = tuned.perturbation.start(tuned.problem)
        torch.testing.assert_close(tuned.initial[:, 16:], fresh[:, 16:])
        assert (tuned.draws[:, 16:] - fresh[:, 16:]).norm() > 0.1 * fresh[:, 16:].norm()

    def test_more_draws_than_a_sampled_posterior_has_are_made(self) -> None:
        few = lw.tune(TOY.fit(lw.Sampled(3, seed=7)), lw.EM(samples=1000, noise=False))
        assert few.prior_precisions.item() == pytest.approx(float(best(TOY)[0]), rel=0.05)
        assert few.initial is not None and few.initial.shape[1] == few.draws.shape[1] == 3

    def test_warns_where_the_draws_missed_their_tolerance(self) -> None:
        solver = lw.solvers.SGD(epochs=3, batch=20, rtol=1e-6)
        with pytest.warns(ConvergenceWarning, match="relative residual"):
            lw.tune(TOY.fit(lw.MatrixFree()), lw.EM(solver=solver, noise=False, steps=30))

    def test_one_draw_is_enough_to_go_on(self) -> None:
        tuned = lw.tune(TOY.fit(lw.MatrixFree()), lw.EM(samples=1, noise=False))
        assert tuned.trace[-1].effective_dimension_error is None
        assert tuned.prior_precisions.item() == pytest.approx(float(best(TOY)[0]), rel=0.5)


class TestAnyPosterior:
    def test_warns_where_steps_are_too_few(self) -> None:
        with pytest.warns(ConvergenceWarning, match="after 2 steps"):
            tuned = lw.tune(TOY.fit(), lw.EM(steps=2))
        assert len(tuned.trace) == 3

    @pytest.mark.parametrize("seed", range(2))
    def test_says_no_more_of_targets_without_noise_than_that_it_takes_them_for_such(
        self, seed: int, recwarn: pytest.WarningsRecorder
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        x = probes.gaussian((50, 2), like=torch.zeros(()), generator=generator)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = torch.nn.Linear(2, 1)
        tuned = lw.tune(lw.Laplace(lw.Gaussian()).fit(model, (x, x.sum(1, keepdim=True))), lw.EM())
        assert tuned.trace[-1].noise_precision is not None and tuned.trace[-1].noise_precision > 1e6
        said = [str(one.message) for one in recwarn.list if issubclass(one.category, ConvergenceWarning)]
        assert all("end of its range" in sentence for sentence in said)  # nothing of the mode

    def test_goes_on_from_where_it_ended_without_another_step(self) -> None:
        once = lw.tune(TOY.fit(), lw.EM(tolerance=1e-3, noise=False))
        twice = lw.tune(once, lw.EM(tolerance=1e-3, noise=False))
        assert len(twice.trace) == len(once.trace) + 1 and twice.trace[: len(once.trace)] == once.trace
        assert twice.prior == once.prior

    def test_where_it_starts_makes_no_difference(self) -> None:
        ends = [lw.tune(TOY.fit(prior=lw.Isotropic(start)), lw.EM(**PRECISE)) for start in (1e-4, 1e5)]
        for end in ends:
            torch.testing.assert_close(end.prior_precisions, ends[0].prior_precisions, rtol=2e-4, atol=0)

    def test_leaves_the_posterior_and_the_network_as_they_were(self) -> None:
        posterior, before = TOY.fit(), portrait(TOY.model)
        tuned = lw.tune(posterior, lw.EM())
        assert posterior.trace == () and posterior.prior == lw.Isotropic(500.0)
        assert tuned.log_marginal() != posterior.log_marginal()
        assert portrait(TOY.model) == before

    def test_a_posterior_from_a_file_needs_its_data(self, tmp_path: Any) -> None:
        lw.save(TOY.fit(), tmp_path / "toy.safetensors")
        loaded = lw.load(tmp_path / "toy.safetensors", TOY.model)
        with refused(UnsupportedError, "training data"):
            lw.tune(loaded, lw.EM())
        odd = [{"a": TOY.x, "b": TOY.y}]
        tuned = lw.tune(loaded, lw.EM(data=odd, unpack=lambda it: (it["a"], it["b"])))
        assert tuned.prior_precisions.item() == pytest.approx(lw.tune(TOY.fit(), lw.EM()).prior_precisions.item())
        with refused(DataError, "the data the posterior was fitted to"):
            lw.tune(loaded, lw.EM(data=(TOY.x, TOY.y + 0.1)))

    def test_is_quiet_unless_asked(self, capfd: pytest.CaptureFixture[str]) -> None:
        lw.tune(TOY.fit(), lw.EM())
        assert capfd.readouterr() == ("", "")
        lw.tune(TOY.fit(), lw.EM(), progress=True)
        assert "EM" in capfd.readouterr().err

    def test_works_where_gradients_are_off(self) -> None:
        with torch.no_grad():
            off = lw.tune(TOY.fit(lw.MatrixFree()), lw.EM())
        assert off.trace == lw.tune(TOY.fit(lw.MatrixFree()), lw.EM()).trace

    def test_single_precision_agrees_with_double(self) -> None:
        case = learnt("gaussian")
        single = case.model.float()
        recipe = lw.Laplace(case.likelihood, structure=lw.Full(view="weights"))
        tuned = lw.tune(recipe.fit(single, (case.x.float(), case.y.float())), lw.EM())
        double = learnt("gaussian")
        other = lw.tune(recipe.fit(double.model, (double.x, double.y)), lw.EM())
        assert math.log(tuned.prior_precisions.item() / other.prior_precisions.item()) == pytest.approx(0, abs=0.02)

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({"estimator": "both"}, "estimator"),
            ({"target": "linear"}, "target"),
            ({"samples": 0}, "samples"),
            ({"steps": 0}, "steps"),
            ({"tolerance": 0.0}, "tolerance"),
            ({"solver": "CG"}, "solver"),
        ],
    )
    def test_refuses_options_that_make_no_sense(self, options: dict[str, Any], expected: str) -> None:
        with pytest.raises((ConfigError, TypeError), match=expected):
            lw.EM(**options)


class TestWarns:
    @pytest.mark.parametrize("structure", [lw.KFAC(), lw.Sampled(8)])
    def test_where_the_data_determine_nothing_at_the_start(self, structure: Any) -> None:
        posterior = TOY.fit(structure, lw.Isotropic(1e9))
        with pytest.warns(ConvergenceWarning, match="less than 0.01 directions"):
            tuned = lw.tune(posterior, lw.EM(noise=False))
        assert len(tuned.trace) == 1

    @pytest.mark.parametrize("structure", [lw.Full(view="weights"), lw.KFAC(), lw.Sampled(4)])
    def test_where_one_class_leaves_nothing_to_determine(self, structure: Any) -> None:
        case = Problem(mlp(1), lw.Categorical(), normal(6, 3), torch.zeros(6, dtype=torch.long), normal(2, 3))
        posterior = case.fit(lw.Laplace(case.likelihood, structure=structure))
        with pytest.warns(ConvergenceWarning, match="less than 0.01 directions"):
            tuned = lw.tune(posterior, lw.EM())
        assert tuned.prior == posterior.prior

    def test_where_few_draws_cannot_tell_a_dimension_from_nothing(self) -> None:
        posterior = TOY.fit(lw.MatrixFree(), lw.Isotropic(1e3))
        with pytest.warns(ConvergenceWarning, match="by 2 draws.*larger samples="):
            lw.tune(posterior, lw.EM(noise=False, estimator="weights", samples=2, seed=1, steps=1))

    def test_where_newtons_steps_ran_out(self) -> None:
        mode = Mode(normal(3), 1.0, 0.0, 0.02, 50, 60, "iterations")
        with pytest.warns(ConvergenceWarning, match="after 50 steps.*Try Validation"):
            warn_unless_found(mode, lw.solvers.CG())

    def test_not_where_rounding_let_them_go_no_further(self, recwarn: pytest.WarningsRecorder) -> None:
        mode = Mode(normal(3), 1.0, 0.0, 0.02, 50, 60, "stagnated")
        warn_unless_found(mode, lw.solvers.CG())
        assert not recwarn.list
        with pytest.warns(ConvergenceWarning, match="Try SGD with more epochs"):
            warn_unless_found(mode, lw.solvers.SGD())
