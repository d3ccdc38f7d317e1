"""Laplace's approximation of a process: scikit-learn's for two classes, the exact one for Gaussian noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from torch import Tensor

import lapwing as lw
from lapwing.gp import LaplaceGPPosterior
from lapwing.gp.laplace import usual_method
from lapwing.gp.observations import Observations
from lapwing.gp.recipe import lengthscales
from lapwing.ground.errors import ConfigError, DataError, DataWarning, ShapeError, TooLargeError, UnsupportedError
from tests.checker import unchecked
from tests.posterior_cases import labels, normal, refused

X, NEW = normal(25, 2), normal(6, 2, seed=1)
TWO = ((X[:, 0] + 0.5 * normal(25, seed=2)) > 0).long()
KERNEL = 1.7 * lw.gp.RBF(0.9)


def test_two_classes_are_those_of_scikit_learn() -> None:
    theirs = GaussianProcessClassifier(ConstantKernel(1.7) * RBF(0.9), optimizer=None).fit(X.numpy(), TWO.numpy())
    inner: Any = theirs.base_estimator_
    process = lw.GP(KERNEL, lw.Bernoulli()).fit((X, TWO))
    np.testing.assert_allclose(process.fitted[:, 0], inner.f_cached, rtol=1e-6, atol=1e-6)
    assert process.log_marginal() == pytest.approx(float(theirs.log_marginal_likelihood_value_), rel=1e-7)
    k = KERNEL(X, NEW)
    mean = k.mT @ torch.as_tensor(inner.y_train_ - inner.pi_)
    v = torch.linalg.solve(torch.as_tensor(inner.L_), torch.as_tensor(inner.W_sr_)[:, None] * k)
    outputs = process.outputs(NEW)
    torch.testing.assert_close(outputs.mean[:, 0], mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(outputs.variance[:, 0], 1.7 - v.square().sum(0), rtol=1e-6, atol=1e-6)


def test_classes_that_are_two_are_one_difference() -> None:
    """A softmax of two functions is the logistic function of their difference, of twice the variance."""
    two = lw.GP(KERNEL, lw.Categorical()).fit((X, TWO))
    one = lw.GP(2.0 * KERNEL, lw.Bernoulli()).fit((X, TWO))
    difference = two.fitted[:, 1] - two.fitted[:, 0]
    torch.testing.assert_close(difference, one.fitted[:, 0], rtol=1e-6, atol=1e-6)
    assert two.log_marginal() == pytest.approx(one.log_marginal(), rel=1e-8)


def test_with_gaussian_noise_it_is_the_process() -> None:
    y = normal(25, 2, seed=3)
    exact = lw.GP(KERNEL, lw.Gaussian(8.0), mean="zero").fit((X, y))
    process = LaplaceGPPosterior(KERNEL, lw.Gaussian(8.0), Observations.of((X, y)))
    ours, theirs = process.outputs(NEW), exact.outputs(NEW)
    torch.testing.assert_close(ours.mean, theirs.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours.variance, theirs.variance, rtol=1e-6, atol=1e-6)
    assert process.log_marginal() == pytest.approx(float(exact.log_marginal()), rel=1e-7)


def test_three_classes_and_counts_are_scored() -> None:
    three = labels(25, classes=3)
    scores = lw.evaluate(lw.GP(KERNEL, lw.Categorical()).fit((X, three)), (X, three))
    assert scores["nll"] < 1.0986 and scores["accuracy"] > 0.5
    counts = lw.GP(KERNEL, lw.Poisson()).fit((X, TWO.double()))
    assert lw.evaluate(counts, (X, TWO.double()[:, None]))["nll"] < 1.0


def test_single_precision_is_that_of_the_answers_alone() -> None:
    x = torch.linspace(-2, 2, 60)[:, None]
    found, exact = (lw.GP(lw.gp.RBF(1.0), lw.Bernoulli()).fit((v, (x > 0).long())) for v in (x, x.double()))
    ours, theirs = found.outputs(NEW[:, :1]), exact.outputs(NEW[:, :1].float())
    assert ours.covariance.dtype == torch.float32 and found.log_marginal() == exact.log_marginal()
    torch.testing.assert_close(ours.mean, theirs.mean.float())
    torch.testing.assert_close(ours.variance, theirs.variance.float())


TARGETS: list[tuple[Any, Any]] = [
    (lw.Bernoulli(), torch.stack([TWO, TWO.flip(0)], 1)),
    (lw.Categorical(), labels(25, classes=3)),
    (lw.Poisson(weight=1.5), 2.0 * TWO),
]


@pytest.mark.parametrize(("likelihood", "y"), TARGETS, ids=lambda each: type(each).__name__)
def test_the_gradient_of_the_evidence_is_its_derivative(likelihood: Any, y: Tensor) -> None:
    process = lw.GP(1.7 * lw.gp.Matern((0.9, 1.4)), likelihood).fit((X, y))
    hyper, step = process.kernel.hyper, 1e-4 * torch.eye(3).double()

    def value(at: Tensor) -> float:
        return process.with_hyperparameters(process.kernel.with_hyper(at)).log_marginal()

    slopes = [(value(hyper + by) - value(hyper - by)) / 2e-4 for by in step]
    assert process.gradient().tolist() == pytest.approx(slopes, abs=1e-6)


def test_the_evidence_is_highest_where_scikit_learn_finds_it() -> None:
    y = ((X[:, 0] + X[:, 1].square() - 1 + 0.5 * normal(25, seed=2)) > 0).long()
    theirs: Any = GaussianProcessClassifier(ConstantKernel(1.7) * RBF([0.9, 0.9])).fit(X.numpy(), y.numpy())
    ours = lw.tune(lw.GP(1.7 * lw.gp.RBF((0.9, 0.9)), lw.Bernoulli()).fit((X, y)))
    assert ours.log_marginal() == pytest.approx(theirs.log_marginal_likelihood_value_, abs=1e-6)
    assert ours.kernel.hyper.tolist() == pytest.approx(theirs.kernel_.theta, abs=1e-2)
    assert ours.trace[-1].log_marginal == pytest.approx(ours.log_marginal(), rel=1e-9)
    assert list(ours.trace[-1].values) == ["variance", "lengthscale[0]", "lengthscale[1]"]


def test_many_rows_are_tuned_by_a_part_of_them() -> None:
    assert usual_method(15, 2, most=30) == lw.gp.Evidence()
    assert usual_method(25, 2, most=30) == lw.gp.Subset(15)
    assert usual_method(25, 40, most=30) == lw.gp.Subset(2)
    process = lw.GP(KERNEL, lw.Categorical()).fit((X, TWO))
    part = lw.tune(process, lw.gp.Subset(15))
    assert part.kernel != process.kernel and len(part.data) == 25


def test_what_cannot_be_tuned_is_refused() -> None:
    process = lw.GP(lw.gp.Custom(lambda a, b: a @ b.mT), lw.Bernoulli()).fit((X, TWO))
    with unchecked(), refused(UnsupportedError, "a kernel with hyper-parameters"):
        lw.tune(process)
    with refused(ConfigError, "one of Evidence, Subset"):
        lw.tune(lw.GP(KERNEL, lw.Bernoulli()).fit((X, TWO)), lw.gp.Pathwise())


def test_a_class_that_was_never_seen_is_unlikely_and_not_impossible() -> None:
    with pytest.warns(DataWarning, match="all targets of an output are 0"):
        process = lw.GP(KERNEL, lw.Categorical()).fit((X, torch.zeros(25).long()))
    assert bool(((probs := process.predict(X).probs)[:, 1] > 0).all() and (probs[:, 1] < 0.5).all())


def test_more_data_are_as_if_they_had_been_there(recwarn: pytest.WarningsRecorder) -> None:
    half = lw.GP(KERNEL, lw.Bernoulli()).fit((X[:12], TWO[:12]))
    assert half.log_marginal() < 0
    whole = lw.GP(KERNEL, lw.Bernoulli()).fit((X, TWO))
    ones = TWO[12:] == 1
    parts = [(X[12:][of], TWO[12:][of]) for of in (ones, ~ones)]  # of one class each, which is nothing to warn of
    more = half.updated(parts[0]).updated(parts[1])
    assert more.log_marginal() == pytest.approx(whole.log_marginal(), rel=1e-9)
    assert not recwarn.list


def test_what_is_no_class_is_refused() -> None:
    with refused(DataError, "targets that are 0 or 1 for Bernoulli"):
        lw.GP(KERNEL, lw.Bernoulli()).fit((X, TWO + 1))
    with refused(DataError, "labels from 0 to 1"):
        lw.GP(KERNEL, lw.Categorical()).fit((X, 2 * TWO - 1))
    with refused(TooLargeError, "classes numbered from 0"):
        lw.GP(KERNEL, lw.Categorical()).fit((X, TWO * 10**9))
    for wrong in (torch.eye(3)[torch.arange(len(X)) % 3], TWO + 0.4):
        with refused(DataError, "one-hot"):
            lw.GP(KERNEL, lw.Categorical()).fit((X, wrong))
    with unchecked(), refused(DataError, "in 1 of 25 rows: 0."):
        lw.GP(KERNEL, lw.Bernoulli()).fit((torch.cat([X[:1] / 0, X[1:]]), TWO))
    with refused(ShapeError, "inputs with 3 columns. Got 2"):
        lw.GP(lw.gp.RBF((1.0, 1.0, 1.0)), lw.Bernoulli()).fit((X, TWO))
    for wrong in ("logistic", lw.HeteroscedasticGaussian()):
        with unchecked(), refused(ConfigError, "likelihood to be one of Gaussian"):
            lw.GP(KERNEL, wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [{"mean": "linear"}, {"solver": lw.solvers.CG()}, {"dtype": torch.float32}, {"kernel": (KERNEL, KERNEL)}],
    ids=lambda options: next(iter(options)),
)
def test_options_of_real_targets_are_refused(options: dict[str, Any]) -> None:
    with refused(ConfigError, "what a process with Categorical has"):
        lw.GP(**{"kernel": KERNEL, "likelihood": lw.Categorical()} | options)


def test_noise_of_classes_is_refused() -> None:
    with refused(ConfigError, "no noise of each row with Bernoulli"):
        lw.GP(KERNEL, lw.Bernoulli()).fit((X, TWO), relative_noise=torch.ones(25))


def test_without_a_kernel_it_is_a_matern_over_the_data() -> None:
    posterior = lw.GP(likelihood=lw.Categorical()).fit((X, TWO))
    assert posterior.kernel == 1.0 * lw.gp.Matern(lengthscales(X))
    assert float((posterior.predict(X).probs.argmax(-1) == TWO).double().mean()) > 0.9


def test_joint_outputs_have_those_of_each_input_on_their_diagonal() -> None:
    posterior = lw.GP(KERNEL, lw.Categorical()).fit((X, labels(25, classes=3)))
    alone, joint = posterior.outputs(NEW), posterior.outputs(NEW, joint=True)
    torch.testing.assert_close(joint.mean, alone.mean)
    torch.testing.assert_close(joint.marginal().covariance, alone.covariance)
    draws = posterior.sample_functions(NEW, 20_000, generator=0).flatten(1)
    torch.testing.assert_close(draws.mT.cov(), joint.covariance.reshape(18, 18), rtol=0, atol=0.05)


def test_with_gaussian_noise_joint_outputs_are_those_of_the_process() -> None:
    y = normal(25, 2, seed=3)
    exact = lw.GP(KERNEL, lw.Gaussian(8.0), mean="zero").fit((X, y))
    posterior = LaplaceGPPosterior(KERNEL, lw.Gaussian(8.0), Observations.of((X, y)))
    ours, theirs = posterior.outputs(NEW, joint=True), exact.outputs(NEW, joint=True)
    torch.testing.assert_close(ours.covariance, theirs.covariance, rtol=1e-6, atol=1e-6)  # type: ignore[union-attr]
