"""A process that a few targets do not bend: dense formulas in NumPy, finite differences, and the Gaussian limit."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

import lapwing as lw
from lapwing.gp import GPStep, StudentTGPPosterior
from lapwing.gp.robust_mode import RobustPoint, robust_mode
from lapwing.ground.errors import ConfigError, ConvergenceWarning, DataError, DataWarning, NumericalError, TooLargeError
from lapwing.linear.mode.loss import Mode
from lapwing.predictive import HeavyTailedRegression
from tests.posterior_cases import normal, refused

X, NEW = normal(25, 2), normal(6, 2, seed=1)
Y = X[:, 0].sin() + 0.2 * normal(25, seed=2)
Y[[3, 11, 19]] += torch.tensor([6.0, -9.0, 40.0]).double()
KERNEL = 1.7 * lw.gp.RBF(0.9)


def fitted(
    kernel: Any = KERNEL, df: float = 3.0, scale: float = 0.2, y: Tensor = Y, **options: Any
) -> StudentTGPPosterior:
    posterior = lw.GP(kernel, lw.StudentT(df, scale, **options)).fit((X, y))
    assert isinstance(posterior, StudentTGPPosterior)
    return posterior


def dense(process: StudentTGPPosterior) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """K, the mode of the outputs, and W there by differences of scipy's density."""
    k = KERNEL(X, X).numpy() + 1.7e-10 * np.eye(25)
    f = process.fitted[:, 0].numpy()
    known = stats.t(process.likelihood.df, scale=process.likelihood.scale)
    step, r = 1e-4, Y.numpy() - f
    w = -(known.logpdf(r + step) - 2 * known.logpdf(r) + known.logpdf(r - step)) / step**2
    return k, f, process.likelihood.weight * w


@pytest.mark.parametrize("weight", [1.0, 2.5])
def test_mode_evidence_and_predictions_are_those_of_the_dense_formulas(weight: float) -> None:
    process = fitted(weight=weight)
    k, f, w = dense(process)
    assert (w < 0).any()
    known, r = stats.t(3.0, scale=0.2), Y.numpy() - f
    slope = -weight * (known.logpdf(r + 1e-5) - known.logpdf(r - 1e-5)) / 2e-5
    np.testing.assert_allclose(k @ slope, f, rtol=1e-5, atol=1e-5)
    b = np.eye(25) + k @ np.diag(w)
    sign, logdet = np.linalg.slogdet(b)
    evidence = weight * known.logpdf(r).sum() - 0.5 * f @ np.linalg.solve(k, f) - 0.5 * logdet
    assert sign > 0 and process.log_marginal() == pytest.approx(evidence, rel=1e-6)
    across = KERNEL(X, NEW).numpy()
    outputs = process.outputs(NEW, joint=True)
    np.testing.assert_allclose(outputs.mean[:, 0], across.T @ slope, rtol=1e-5, atol=1e-5)
    expected = KERNEL(NEW, NEW).numpy() - across.T @ np.diag(w) @ np.linalg.solve(b, across)
    np.testing.assert_allclose(outputs.covariance[:, 0, :, 0], expected, rtol=1e-5, atol=1e-5)  # type: ignore[union-attr]
    torch.testing.assert_close(process.outputs(NEW).variance[:, 0], outputs.variance[:, 0])


@pytest.mark.parametrize("weight", [1.0, 2.5])
@pytest.mark.parametrize(("df", "scale"), [(1.0, 0.3), (3.0, 0.2), (30.0, 1.0)])
def test_the_gradient_of_the_evidence_is_its_derivative(df: float, scale: float, weight: float) -> None:
    process = fitted(1.7 * lw.gp.Matern((0.9, 1.4)), df, scale, weight=weight)
    logs, step = process.log_hyperparameters(), 1e-4 * torch.eye(4).double()

    def value(at: Tensor) -> float:
        return process.with_log_hyperparameters(at).log_marginal()

    slopes = [(value(logs + by) - value(logs - by)) / 2e-4 for by in step]
    assert process.gradient().tolist() == pytest.approx(slopes, abs=2e-6)


def test_of_many_degrees_of_freedom_it_is_the_gaussian_process() -> None:
    process = fitted(df=1e6, y=Y.clamp(-2, 2))
    exact = lw.GP(KERNEL, lw.Gaussian(25.0), mean="zero").fit((X, Y.clamp(-2, 2)))
    ours, theirs = process.predict(NEW), exact.predict(NEW)
    assert isinstance(ours, HeavyTailedRegression)
    torch.testing.assert_close(ours.outputs.mean, theirs.outputs.mean, rtol=1e-3, atol=1e-4)  # type: ignore[union-attr]
    torch.testing.assert_close(ours.outputs.std, theirs.outputs.std, rtol=1e-3, atol=1e-4)  # type: ignore[union-attr]
    assert process.log_marginal() == pytest.approx(float(exact.log_marginal()), rel=1e-3)


def test_gross_errors_bend_it_less_than_a_gaussian_process() -> None:
    """One target in ten is far off; both processes choose their hyper-parameters."""
    x = torch.linspace(0, 6, 60, dtype=torch.float64)[:, None]
    truth = x[:, 0].sin()
    y = truth + 0.1 * normal(60, seed=4)
    y[::10] += 3 * normal(6, seed=5)
    kernel = 1.0 * lw.gp.RBF(1.0)
    robust = lw.tune(lw.GP(kernel, lw.StudentT(scale=0.5)).fit((x, y)))
    gaussian = lw.tune(lw.GP(kernel, lw.Gaussian(4.0), mean="zero").fit((x, y)))
    ours, theirs = ((process.predict(x).mean[:, 0] - truth).square().mean().sqrt() for process in (robust, gaussian))  # type: ignore[union-attr]
    assert float(ours) < 0.08 and float(ours) < 0.3 * float(theirs)
    assert robust.likelihood.scale == pytest.approx(0.1, rel=0.5) and robust.likelihood.df == 4.0  # type: ignore[union-attr]
    assert robust.log_marginal() > gaussian.log_marginal() + 20  # type: ignore[operator]
    assert list(robust.trace[-1].values)[-1] == "squared scale"
    assert robust.trace[-1].log_marginal == pytest.approx(robust.log_marginal(), rel=1e-9)


@pytest.mark.filterwarnings("ignore:the evidence still rose:lapwing.ground.errors.ConvergenceWarning")
def test_its_noise_is_left_where_the_method_says_so() -> None:
    tuned = lw.tune(fitted(), lw.gp.Evidence(noise=False, steps=3))
    assert tuned.likelihood.scale == pytest.approx(0.2) and tuned.kernel != KERNEL
    part = lw.tune(fitted(), lw.gp.Subset(15))
    assert len(part.data) == 25 and part.likelihood.scale != 0.2


def test_far_targets_of_any_size_say_nothing() -> None:
    means = []
    for size in (1e6, 1e20, 1e140):
        y = Y.clone()
        y[3] = size
        means.append(fitted(y=y).outputs(NEW).mean)
    torch.testing.assert_close(means[0], means[2], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(means[1], means[2])
    single = lw.GP(KERNEL, lw.StudentT(3.0, 0.2)).fit((X.float(), torch.where(Y[3] == Y, 1e20, Y).float()))
    found = single.outputs(NEW.float()).mean
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, means[1].float(), rtol=1e-4, atol=1e-4)


def test_inputs_that_repeat_are_several_observations() -> None:
    """Two of three agree: the third is the one that is off."""
    x = torch.zeros(3, 1).double()
    posterior = lw.GP(100.0 * lw.gp.RBF(), lw.StudentT(3.0, 0.1)).fit((x, torch.tensor([5.0, 5.0, -5.0]).double()))
    assert float(posterior.predict(x[:1]).mean) == pytest.approx(5.0, abs=0.1)


def test_targets_that_never_vary() -> None:
    with pytest.warns(DataWarning, match="all targets of an output are 0"):
        zero = lw.GP(KERNEL, lw.StudentT()).fit((X, torch.zeros(25)))
    assert float(zero.outputs(NEW).mean.abs().max()) == 0.0 and zero.mode.stopped == "converged"
    with pytest.warns(DataWarning, match="all targets of an output are 2"):
        two = lw.GP(KERNEL, lw.StudentT(4.0, 1e-3)).fit((X, torch.full((25,), 2.0)))
    torch.testing.assert_close(two.fitted, torch.full_like(two.fitted, 2.0), rtol=1e-3, atol=0.0)


def test_targets_far_from_zero_are_warned_of() -> None:
    with pytest.warns(DataWarning, match="median is 1e.03 under a prior of mean 0 and standard deviation 1.3"):
        lw.GP(KERNEL, lw.StudentT()).fit((X, Y + 1000))
    with_mean = lw.GP(KERNEL + 1e6 * lw.gp.Constant(), lw.StudentT(3.0, 0.2)).fit((X, Y + 1000))
    torch.testing.assert_close(with_mean.outputs(NEW).mean, fitted().outputs(NEW).mean + 1000, rtol=0, atol=0.5)


@pytest.mark.parametrize("offset", [1000.0, -1000.0])
def test_targets_far_from_zero_are_warned_of_on_either_side(offset: float) -> None:
    with pytest.warns(DataWarning, match="far from the data predictions go to 0"):
        lw.GP(KERNEL, lw.StudentT()).fit((X, Y + offset))


def test_a_posterior_wider_than_the_prior_is_warned_of_and_has_no_evidence_to_climb() -> None:
    """At a prior variance of 4 σ² and df 1, a target 3 √3 σ off 0 has a mode at which the loss is flat."""
    at = torch.zeros(1, 1).double()
    posterior = lw.GP(1.0 * lw.gp.RBF(1.0), lw.StudentT(1.0, 0.51)).fit((at, torch.tensor([2.581]).double()))
    with refused(NumericalError, "one that is about to vanish"):
        lw.tune(posterior)
    with pytest.warns(ConvergenceWarning, match="3.2 times as wide as the prior"):
        assert float(posterior.predict(at).outputs.std) > 3.2  # type: ignore[union-attr]
    near = lw.GP(1.0 * lw.gp.RBF(1.0), lw.StudentT(1.0, 0.51)).fit((at, torch.tensor([1.0]).double()))
    assert float(near.predict(at).outputs.std) < 1  # type: ignore[union-attr]


def test_tuning_stops_before_a_mode_vanishes_and_says_so() -> None:
    """With one degree of freedom the evidence grows without bounds where two modes meet."""
    x = torch.linspace(0, 6, 20, dtype=torch.float64)[:, None]
    y = x[:, 0].sin() + 0.1 * normal(20, seed=7)
    y[::6] += 4 * normal(4, seed=37)
    start = lw.GP(1.0 * lw.gp.RBF(1.0), lw.StudentT(1.0, 0.3)).fit((x, y))
    with pytest.warns(ConvergenceWarning, match="the mode is about to vanish"):
        tuned = lw.tune(start)
    assert tuned.log_marginal() > start.log_marginal()  # type: ignore[operator]
    assert float(tuned.predict(x).outputs.variance.max()) < 10 * float(tuned.kernel.diagonal(x).max())  # type: ignore[union-attr]


def test_its_mode_is_looked_for_near_the_one_that_is_known() -> None:
    process = fitted(scale=1.0)
    assert process.with_hyperparameters(process.kernel).start is None
    fitted_outputs = process.fitted
    assert process.with_hyperparameters(process.kernel).start is fitted_outputs
    with pytest.MonkeyPatch.context() as patch:
        seen: list[Any] = []

        def recorded(loss: Any, starts: Any, **options: Any) -> Mode:
            seen.extend(starts)
            return robust_mode(loss, starts, **options)

        patch.setattr("lapwing.gp.student_t.robust_mode", recorded)
        again = process.with_hyperparameters(process.kernel)
        torch.testing.assert_close(again.fitted, fitted_outputs)
    torch.testing.assert_close(seen[0], process.mode.weights)


def test_the_least_scale_is_what_rounding_leaves_of_near_targets() -> None:
    least = fitted().least_noise().variances
    assert float(least) == pytest.approx(1e2 * np.finfo(float).eps * float(Y.abs().median()) ** 2)


def test_a_scale_below_rounding_is_warned_of() -> None:
    with pytest.warns(ConvergenceWarning, match="mode was found to a relative gradient"):
        assert fitted(scale=1e-9).mode.stopped == "stagnated"


def test_what_is_no_strict_mode_is_refused() -> None:
    """As a file may hold it: between two targets that contradict each other."""
    x = torch.zeros(2, 1).double()
    posterior = lw.GP(100.0 * lw.gp.RBF(), lw.StudentT(1.0, 0.1)).fit((x, torch.tensor([4.0, -4.0]).double()))
    wrong = posterior.with_mode(Mode(torch.zeros(2).double(), 0.0, 0.0, 0.0, 0, 0, "converged"))
    with refused(NumericalError, "no strict mode"):
        wrong.predict(x)
    assert abs(float(posterior.predict(x[:1]).mean)) == pytest.approx(4.0, abs=0.1)


@pytest.mark.parametrize("joint", [False, True])
def test_predictions_can_be_differentiated_in_the_inputs(joint: bool) -> None:
    process = fitted(1.3 * lw.gp.Matern(0.9, 2.5))

    def told(x: Tensor) -> tuple[Tensor, ...]:
        p = process.predict(x, joint=joint)
        assert isinstance(p, HeavyTailedRegression)
        return p.mean, p.std, p.log_prob(torch.ones(2, 1).double()), *p.interval(0.9)

    assert torch.autograd.gradcheck(told, (NEW[:2].clone().requires_grad_(),))


def test_more_data_are_as_if_they_had_been_there() -> None:
    half = lw.GP(KERNEL, lw.StudentT(3.0, 0.2)).fit((X[:12], Y[:12]))
    assert half.log_marginal() < 0
    more = half.updated((X[12:], Y[12:]))
    assert isinstance(more, StudentTGPPosterior)
    assert more.log_marginal() == pytest.approx(fitted().log_marginal(), rel=1e-9)


@pytest.mark.parametrize("how", ["file", "pickle", "to"])
def test_it_comes_back(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = replace(fitted(), trace=(GPStep({"lengthscale": 2.0, "squared scale": 0.1}, -1.5),))
    expected = process.predict(NEW)
    assert isinstance(expected, HeavyTailedRegression)
    if how == "file":
        lw.save(process, tmp_path / "process.safetensors")
        loaded: Any = lw.load(tmp_path / "process.safetensors")
        monkeypatch.setattr(RobustPoint, "reweighted", None)  # nothing is solved again
    elif how == "pickle":
        loaded = pickle.loads(pickle.dumps(process))
    else:
        loaded = process.to("cpu")
    found = loaded.predict(NEW)
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.std, expected.std, rtol=1e-9, atol=1e-9)
    assert repr(loaded) == repr(process) and loaded.trace == process.trace
    if how == "file":
        assert torch.equal(found.mean, expected.mean) and torch.equal(found.std, expected.std)
        assert loaded.log_marginal() == process.log_marginal()


def test_predictions_have_the_noise_and_joint_ones_the_same_marginals() -> None:
    process = fitted()
    alone, joint = process.predict(NEW), process.predict(NEW, joint=True)
    assert isinstance(alone, HeavyTailedRegression) and isinstance(joint, HeavyTailedRegression)
    assert (alone.df, alone.scale) == (3.0, 0.2)
    torch.testing.assert_close(alone.std, joint.std)
    draws = process.sample_functions(NEW, 20_000, generator=0)[..., 0]
    torch.testing.assert_close(draws.mT.cov(), joint.outputs.covariance[:, 0, :, 0], rtol=0, atol=0.05)
    scores = lw.evaluate(process, (X, Y))
    assert scores["picp"] < 1.0 and scores["nll"] < 1.5


def test_what_it_does_not_take_is_refused() -> None:
    with refused(DataError, "for a process with StudentT. Got [25, 2]"):
        lw.GP(KERNEL, lw.StudentT()).fit((X, torch.stack([Y, Y], 1)))
    with refused(DataError, "targets up to 1e+150"):
        lw.GP(KERNEL, lw.StudentT()).fit((X, torch.where(Y[3] == Y, 1e200, Y)))
    with refused(TooLargeError, "Got 17,000 x 17,000 entries"):
        lw.GP(KERNEL, lw.StudentT()).fit((torch.arange(34_000.0).view(17_000, 2), torch.arange(17_000.0)))
    with refused(ConfigError, "what a process with StudentT has"):
        lw.GP(KERNEL, lw.StudentT(), mean="linear")
    with refused(ConfigError, "no noise of each row with StudentT"):
        lw.GP(KERNEL, lw.StudentT()).fit((X, Y), relative_noise=torch.ones(25))
