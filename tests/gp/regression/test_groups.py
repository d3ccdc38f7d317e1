"""Outputs with kernels and noises of their own against a process for each, whatever solves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.gp import GP, RBF, GPPosterior, Kernel, Matern
from lapwing.gp.tuning.evidence import Evidence
from lapwing.ground.errors import DataWarning, ShapeError
from lapwing.linear.solvers import Solver
from lapwing.predictive import JointMoments
from tests.posterior_cases import normal, refused

NOISES = (8.0, 400.0, 30.0)
APART: tuple[Kernel, ...] = (Matern((0.7, 1.3)), 0.5 * RBF(2.0), Matern(1.0, 2.5))


def data(n: int = 30) -> tuple[Tensor, Tensor]:
    """Targets of three noises, at inputs of which some repeat."""
    x = normal(n, 2)
    x[n - 4 :] = x[:4]
    noise = torch.tensor(NOISES, dtype=torch.float64).rsqrt()
    return x, torch.sin(x @ normal(2, 3, seed=1)) + noise * normal(n, 3, seed=2)


def alone(kernel: Kernel | tuple[Kernel, ...], output: int, **options: object) -> GPPosterior:
    x, y = data()
    own = kernel[output] if isinstance(kernel, tuple) else kernel
    return GP(own, lw.Gaussian(NOISES[output]), **options).fit((x, y[:, output]))  # type: ignore[arg-type]


@pytest.mark.parametrize("solver", [lw.solvers.Cholesky(), lw.solvers.CG(rtol=1e-11)], ids=["Cholesky", "CG"])
@pytest.mark.parametrize("kernel", [Matern(1.2), APART], ids=["one kernel", "kernels"])
def test_outputs_are_processes_of_their_own(kernel: Kernel | tuple[Kernel, ...], solver: Solver) -> None:
    new = normal(5, 2, seed=3)
    together = GP(kernel, lw.Gaussian(NOISES), solver=solver, samples=3, features=50).fit(data())
    each = [alone(kernel, output, solver=solver) for output in range(3)]
    torch.testing.assert_close(together.mean(new), torch.cat([one.mean(new) for one in each], 1))
    if isinstance(solver, lw.solvers.Cholesky):
        evidence = sum(float(one.log_marginal()) for one in each)
        assert float(together.log_marginal()) == pytest.approx(evidence, rel=1e-10)
        prediction = together.predict(new)
        torch.testing.assert_close(prediction.std, torch.cat([one.predict(new).std for one in each], 1))
        joint = together.predict(new, joint=True).outputs
        assert isinstance(joint, JointMoments)
        for output, one in enumerate(each):
            own = one.predict(new, joint=True).outputs
            assert isinstance(own, JointMoments)
            torch.testing.assert_close(joint.covariance[:, output, :, output], own.covariance[:, 0, :, 0])
        assert float(joint.covariance[:, 0, :, 1].abs().max()) == 0.0


@pytest.mark.parametrize("kernel", [Matern(1.2), APART], ids=["one kernel", "kernels"])
@pytest.mark.parametrize("noise", [20.0, NOISES], ids=["one noise", "noises"])
def test_the_gradient_of_the_evidence_is_that_of_differences(
    kernel: Kernel | tuple[Kernel, ...], noise: float | tuple[float, ...]
) -> None:
    process = GP(kernel, lw.Gaussian(noise), mean="linear").fit(data())
    logs, (value, gradient) = process.log_hyperparameters(), process.evidence_and_gradient()
    assert value == pytest.approx(float(process.log_marginal()), rel=1e-12)
    for k in range(len(logs)):
        step = torch.zeros_like(logs)
        step[k] = 1e-5
        up, down = (float(process.with_log_hyperparameters(logs + sign * step).log_marginal()) for sign in (1, -1))
        assert float(gradient[k]) == pytest.approx((up - down) / 2e-5, rel=1e-5, abs=1e-5)


def test_the_estimated_gradient_has_the_exact_one_for_its_mean() -> None:
    process = GP(APART, lw.Gaussian(NOISES), samples=1000, features=2_000).fit(data())
    torch.testing.assert_close(process.estimated_gradient(), process.evidence_and_gradient()[1], rtol=0, atol=0.6)


def test_each_noise_is_tuned_by_default() -> None:
    x = torch.linspace(-2, 2, 40, dtype=torch.float64)[:, None]
    scales = torch.tensor([0.02, 1.0], dtype=torch.float64)
    y = torch.cat([(2 * x).sin(), (2 * x).cos()], 1) + scales * normal(40, 2, seed=2)
    tuned = Evidence().tune(GP().fit((x, y)))
    torch.testing.assert_close(torch.tensor(tuned.likelihood.noise_std).double(), scales, rtol=0.35, atol=0)
    assert tuned.trace[-1].values.keys() == {"variance", "lengthscale", "noise variance[0]", "noise variance[1]"}


def test_functions_of_outputs_have_the_moments_of_their_posteriors() -> None:
    new = normal(3, 2, seed=3)
    process = GP(APART, lw.Gaussian(NOISES), features=1_000).fit(data())
    values = process.sample_functions(new, 1_500, generator=0)
    moments = process.predict(new, joint=True).outputs
    assert isinstance(moments, JointMoments)
    torch.testing.assert_close(values.mean(0), moments.mean, rtol=0, atol=0.06)
    torch.testing.assert_close(
        values.flatten(1).mT.cov(), moments.covariance.flatten(2).flatten(0, 1), rtol=0, atol=0.08
    )


def test_variances_read_from_functions_know_the_noise_of_each_output() -> None:
    exact = GP(Matern(1.2), lw.Gaussian(NOISES)).fit(data())
    drawn = GP(Matern(1.2), lw.Gaussian(NOISES), solver=lw.solvers.CG(rtol=1e-8), samples=300, features=1_000).fit(
        data()
    )
    new = normal(4, 2, seed=3)
    torch.testing.assert_close(drawn.predict(new).std, exact.predict(new).std, rtol=0.15, atol=0)
    torch.testing.assert_close(
        exact.updated(data()).mean(new),
        GP(Matern(1.2), lw.Gaussian(NOISES)).fit((data()[0].repeat(2, 1), data()[1].repeat(2, 1))).mean(new),
    )


def test_outputs_of_very_different_spread_under_one_kernel_are_warned_of() -> None:
    x, y = data()
    with pytest.warns(DataWarning, match="outputs whose standard deviations go from"):
        GP().fit((x, y * torch.tensor([1.0, 1.0, 50.0]).double()))
    GP(APART).fit((x, y * torch.tensor([1.0, 1.0, 50.0]).double()))


def test_other_numbers_of_kernels_or_noises_than_outputs_are_refused() -> None:
    with refused(ShapeError, "one an output. Got 2 for 3"):
        GP((Matern(), Matern())).fit(data())
    with refused(ShapeError, "2 outputs, one a noise precision"):
        GP(Matern(), lw.Gaussian((1.0, 2.0))).fit(data())
