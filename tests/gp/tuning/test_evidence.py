"""Evidence gradients against differences and autograd through a dense factor, and optima against scikit-learn's."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

import lapwing as lw
from lapwing.gp import GP, RBF, Columns, Constant, GPPosterior, Kernel, Matern, Periodic, RationalQuadratic
from lapwing.gp.kernels.matrix import WIDE
from lapwing.gp.trend import Mean
from lapwing.gp.tuning.evidence import Evidence
from lapwing.gp.tuning.pathwise import Pathwise
from lapwing.gp.tuning.subsets import Subset
from lapwing.ground.errors import ConfigError, ConvergenceWarning, NumericalError
from tests.gp.regression.test_posterior import data
from tests.posterior_cases import normal, refused

KERNELS: list[Kernel] = [
    RBF((0.7, 1.3, 2.0)),
    0.5 * Matern(1.5, 0.5) + 0.1 * Constant(),
    Matern((0.7, 1.3, 2.0), 2.5),
    Periodic(3.0) * Matern(2.0),
    Columns(RationalQuadratic((0.7, 1.3), 2.0), (0, 2)),
]


@pytest.mark.parametrize("mean", ["zero", "linear"])
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_the_gradient_is_that_of_differences(kernel: Kernel, mean: str) -> None:
    x, y = data(30, c=2)
    x[25:] = x[:5]
    process = GP(kernel, lw.Gaussian(20.0), mean=mean).fit((x, y))  # type: ignore[arg-type]
    logs = process.log_hyperparameters()
    value, gradient = process.evidence_and_gradient()
    assert value == pytest.approx(float(process.log_marginal()), rel=1e-12)
    for k in range(len(logs)):
        step = torch.zeros_like(logs)
        step[k] = 1e-5
        up, down = (float(process.with_log_hyperparameters(logs + sign * step).log_marginal()) for sign in (1, -1))
        assert float(gradient[k]) == pytest.approx((up - down) / 2e-5, rel=1e-5, abs=1e-5)


def test_the_gradient_of_several_tiles_is_that_of_differences() -> None:
    process = GP(Matern(1.0, 0.5), lw.Gaussian(20.0), mean="zero").fit(data(WIDE + 5))
    logs = process.log_hyperparameters()
    step = 1e-4 * torch.ones_like(logs)
    up, down = (float(process.with_log_hyperparameters(logs + sign * step).log_marginal()) for sign in (1, -1))
    _, gradient = process.evidence_and_gradient()
    assert float(gradient.sum()) == pytest.approx((up - down) / 2e-4, rel=1e-5)


@pytest.mark.parametrize("mean", ["constant", "linear"])
def test_the_estimated_gradient_has_the_exact_one_for_its_mean(mean: Mean) -> None:
    process = GP(Matern(1.5), lw.Gaussian(20.0), mean=mean, samples=1000, features=5_000).fit(data(30))
    _, exact = process.evidence_and_gradient()
    torch.testing.assert_close(process.estimated_gradient(), exact, rtol=0, atol=0.3)


def test_the_optimum_is_that_of_scikit_learn() -> None:
    x, y = data(60)
    tuned = Evidence().tune(GP(1.0 * RBF(1.0), lw.Gaussian(10.0), mean="zero").fit((x, y)))
    theirs = GaussianProcessRegressor(1.0 * sk.RBF(1.0) + sk.WhiteKernel(0.1), alpha=0.0).fit(x, y[:, 0])
    assert float(tuned.log_marginal()) == pytest.approx(theirs.log_marginal_likelihood_value_, rel=1e-6)
    torch.testing.assert_close(tuned.log_hyperparameters(), torch.as_tensor(theirs.kernel_.theta), rtol=0, atol=1e-2)


def test_pathwise_gradients_come_near_the_exact_optimum() -> None:
    start = GP(1.0 * RBF(1.0), lw.Gaussian(10.0), solver=lw.solvers.CG(rtol=1e-3), features=500).fit(data(60))
    exact = Evidence().tune(start)
    found = Pathwise(steps=30).tune(start)
    best, reached = (float(each.evidence_and_gradient()[0]) for each in (exact, found))
    assert best - 1.0 < reached <= best + 1e-6


def test_every_hyper_parameter_has_a_name_of_its_own() -> None:
    names = (RBF(0.1) + 2.0 * RBF((9.0, 1.0))).labels()
    assert names == ["first.lengthscale", "second.variance", "second.lengthscale[0]", "second.lengthscale[1]"]
    assert (2.0 * (3.0 * RBF(1.0))).labels() == ["variance", "kernel.variance", "lengthscale"]


def test_single_precision_is_tuned_as_double_precision() -> None:
    x, y = data(60)
    x, y = x.float(), (x[:, :1].sin() + 0.01 * normal(60, 1, seed=5)).float()
    single, double = (lw.tune(GP().fit((x.to(dtype), y.to(dtype)))) for dtype in (torch.float32, torch.float64))
    assert single.data.inputs.dtype == torch.float32
    torch.testing.assert_close(
        single.log_hyperparameters()[[0, 1, 4]], double.log_hyperparameters()[[0, 1, 4]], rtol=0, atol=0.1
    )


def test_the_optimum_does_not_know_the_units_of_the_targets() -> None:
    x, y = data(20)
    ours, large = (lw.tune(GP().fit((x, unit * y))) for unit in (1.0, 1e6))
    moved = torch.tensor([2 * math.log(1e6), 0.0, 0.0, 0.0, 2 * math.log(1e6)])
    torch.testing.assert_close(
        large.log_hyperparameters() - ours.log_hyperparameters(), moved.double(), rtol=0, atol=0.02
    )


def test_every_way_leaves_a_trace_of_its_steps() -> None:
    start = GP(1.0 * RBF(1.0), lw.Gaussian(10.0)).fit(data(20))
    with pytest.warns(ConvergenceWarning, match="still rose"):
        tuned = Evidence(steps=5).tune(start)
    first = tuned.trace[0]
    assert first.values == pytest.approx({"variance": 1.0, "lengthscale": 1.0, "noise variance": 0.1})
    assert first.log_marginal == pytest.approx(float(start.log_marginal()))
    assert tuned.trace[-1].log_marginal == pytest.approx(float(tuned.log_marginal()))
    again = Pathwise(steps=2).tune(Subset(10, steps=2).tune(tuned))
    assert again.trace[: len(tuned.trace)] == tuned.trace and again.trace[-1].log_marginal is None
    assert again.trace[-1].values["noise variance"] == pytest.approx(1 / again.likelihood.noise)


def test_a_hyper_parameter_that_the_data_do_not_know_is_told_of() -> None:
    x, _ = data(30)
    y = torch.ones(30, 1, dtype=torch.float64) + 0.1 * torch.linspace(-1, 1, 30).double()[:, None].cos()
    with pytest.warns(ConvergenceWarning, match="limit"):
        Evidence().tune(GP(1.0 * RBF(1.0), lw.Gaussian(10.0), mean="zero").fit((x, 0 * y)))


def test_noise_can_be_known(steps: int = 20) -> None:
    process = GP(1.0 * RBF(1.0), lw.Gaussian(25.0)).fit(data(40))
    assert lw.tune(process, Evidence(noise=False)).likelihood.noise == pytest.approx(25.0)
    tuned = Pathwise(steps=steps, noise=False).tune(process)
    assert tuned.likelihood.noise == pytest.approx(25.0)
    assert isinstance(tuned.mean(process.data.inputs[:2]), Tensor)


def test_tune_takes_the_evidence_by_itself_and_refuses_what_is_no_way_to_choose() -> None:
    process = GP(1.0 * RBF(1.0), lw.Gaussian(10.0)).fit(data(30))
    torch.testing.assert_close(lw.tune(process).log_hyperparameters(), Evidence().tune(process).log_hyperparameters())
    with refused(ConfigError, "the method"):
        lw.tune(process, lw.ELBO())


def test_a_climb_of_the_evidence_takes_few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    x, looks = normal(80, 8), list[int]()
    y = x[:, :1].sin() + 0.1 * normal(80, 1, seed=1)

    look = GPPosterior.evidence_and_gradient

    def counted(process: GPPosterior) -> tuple[float, Tensor]:
        looks.append(1)
        return look(process)

    monkeypatch.setattr(GPPosterior, "evidence_and_gradient", counted)
    process = GP(1.0 * Matern((3.0,) * 8), lw.Gaussian(10.0)).fit((x, y))
    rough = Subset(80).tune(process)
    assert len(looks) <= 40
    assert rough.trace[-2].log_marginal == pytest.approx(float(Evidence().tune(process).log_marginal()), abs=0.5)


def test_inputs_that_are_alike_without_noise_are_a_sentence() -> None:
    x = 1 + 1e-9 * torch.arange(4, dtype=torch.float64)[:, None]
    with refused(NumericalError, "smallest noise variance of 1.0e-20"):
        GP(1.0 * RBF(1.0), lw.Gaussian(1e20)).fit((x, x)).evidence_and_gradient()


def test_interrupted_pathwise_steps_keep_the_last_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    start = GP(1.0 * Matern(1.0), lw.Gaussian(10.0), solver=lw.solvers.CG(rtol=1e-6), samples=4, features=20).fit(
        data(30)
    )
    looks, look = list[int](), GPPosterior.estimated_gradient

    def interrupting(process: GPPosterior) -> torch.Tensor:
        looks.append(1)
        if len(looks) == 3:
            functions = process.functions
            ended = replace(functions.solution, stopped="interrupted")
            process.solves.functions = replace(functions, solution=ended)
        return look(process)

    monkeypatch.setattr(GPPosterior, "estimated_gradient", interrupting)
    with pytest.warns(lw.ConvergenceWarning, match="interrupted after 2 of 5 steps"):
        found = Pathwise(steps=5).tune(start)
    assert [len(looks), len(found.trace)] == [3, 2]


def test_noise_far_below_single_precision_is_found_in_inputs_of_single_precision() -> None:
    x = torch.linspace(0, 4, 60)[:, None]
    y = x.double().sin() + 1e-4 * normal(60, 1, seed=1)
    tuned = Evidence().tune(GP(1.0 * RBF(1.0), lw.Gaussian(10.0), solver=lw.solvers.CG(rtol=1e-6)).fit((x, y.float())))
    assert tuned.system.groups[0].noise.dtype == torch.float64 and tuned.data.inputs.dtype == torch.float32
    assert tuned.likelihood.noise**-0.5 == pytest.approx(1e-4, rel=0.4)


def test_noise_at_what_single_precision_resolves_names_the_cause_and_the_cure() -> None:
    x = torch.linspace(0, 4, 40)[:, None]
    process = GP(1.0 * RBF(1.0), lw.Gaussian(10.0), solver=lw.solvers.CG(), dtype=torch.float32).fit((x, x.sin()))
    says = r"noise variance ended at .*, the least that float32 resolves: .* Try dtype=torch.float64"
    with pytest.warns(ConvergenceWarning, match=says):
        Evidence(steps=60).tune(process)


def test_a_solve_that_rounding_ends_says_which_precision_does_not() -> None:
    x = torch.linspace(0, 4, 60)[:, None]
    single, double = (
        GP(100.0 * RBF(1.0), lw.Gaussian(1e6), solver=lw.solvers.CG(rtol=1e-7), dtype=dtype).fit((x, x.sin()))
        for dtype in (torch.float32, None)
    )
    with pytest.warns(ConvergenceWarning, match="float32 resolves no more"):
        single.mean(x)
    torch.testing.assert_close(double.mean(x), x.sin(), rtol=0, atol=1e-3)
