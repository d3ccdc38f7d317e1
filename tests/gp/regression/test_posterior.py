"""A Gaussian process against scikit-learn's, against dense formulas, and its solvers against each other."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

import lapwing as lw
from lapwing.gp import GP, RBF, GPPosterior, Matern
from lapwing.ground.errors import ConfigError, ConvergenceWarning
from lapwing.ground.progress import Bar
from lapwing.linear.solvers import SDD, AlternatingProjections, Cholesky, Solver
from lapwing.predictive import Draws, JointMoments, Regression
from tests.checker import unchecked
from tests.gp.kernels.test_base import KERNELS
from tests.posterior_cases import normal

NOISE = 20.0


def data(n: int = 40, c: int = 1) -> tuple[Tensor, Tensor]:
    x = normal(n, 3)
    return x, torch.sin(2 * x[:, :c]) + 0.2 * normal(n, c, seed=1)


def predicted(process: GPPosterior, x: Tensor, joint: bool = False) -> Regression:
    prediction = process.predict(x, joint=joint)
    assert isinstance(prediction, Regression)
    return prediction


@pytest.mark.parametrize("name", KERNELS)
def test_mean_covariance_and_evidence_are_those_of_scikit_learn(name: str) -> None:
    ours, theirs = KERNELS[name]
    (x, y), new = data(), normal(7, 3, seed=2)
    process = GP(ours, lw.Gaussian(NOISE), mean="zero").fit((x, y))
    other = GaussianProcessRegressor(theirs, alpha=1 / NOISE, optimizer=None).fit(x, y[:, 0])
    mean, covariance = other.predict(new, return_cov=True)
    prediction = predicted(process, new, joint=True)
    assert isinstance(prediction.outputs, JointMoments)
    close = {"rtol": 1e-8, "atol": 1e-8}
    torch.testing.assert_close(prediction.mean[:, 0], torch.as_tensor(mean), **close)
    torch.testing.assert_close(prediction.outputs.covariance[:, 0, :, 0], torch.as_tensor(covariance), **close)
    alone = predicted(process, new)
    torch.testing.assert_close(alone.variance[:, 0], torch.as_tensor(covariance).diagonal() + 1 / NOISE, **close)
    assert process.log_marginal() == pytest.approx(other.log_marginal_likelihood_value_, rel=1e-9)


@pytest.mark.parametrize("mean", ["constant", "linear"])
def test_an_unknown_mean_is_one_of_great_variance(mean: str) -> None:
    """Generalised least squares is the limit of a prior on β that knows nothing (Rasmussen & Williams, section 2.7)."""
    (x, y), new, great = data(), normal(7, 3, seed=2), 1e7
    process = GP(RBF(1.5), lw.Gaussian(NOISE), mean=mean).fit((x, y + 4.0))  # type: ignore[arg-type]
    h, h_new = process.system.trend(x), process.system.trend(new)
    k = RBF(1.5)
    c = k(x, x) + great * h @ h.mT + torch.eye(len(x)) / NOISE
    across = k(new, x) + great * h_new @ h.mT
    prediction = predicted(process, new)
    torch.testing.assert_close(prediction.mean, across @ torch.linalg.solve(c, y + 4.0), rtol=1e-5, atol=1e-5)
    whole = k(new, new) + great * h_new @ h_new.mT - across @ torch.linalg.solve(c, across.mT)
    torch.testing.assert_close(prediction.variance[:, 0], whole.diagonal() + 1 / NOISE, rtol=1e-4, atol=1e-5)
    outputs = process.outputs(new, joint=True)
    assert isinstance(outputs, JointMoments)
    torch.testing.assert_close(outputs.covariance[:, 0, :, 0], whole, rtol=1e-4, atol=1e-5)


def test_two_outputs_are_two_processes_of_one_kernel() -> None:
    (x, y), new, relative = data(c=2), normal(5, 3, seed=2), torch.linspace(0.5, 3.0, 40).double()
    x[30:] = x[:10]
    joined = GP(RBF(1.5), lw.Gaussian(NOISE)).fit((x, y), relative_noise=relative)
    apart = [GP(RBF(1.5), lw.Gaussian(NOISE)).fit((x, y[:, j]), relative_noise=relative) for j in range(2)]
    both = predicted(joined, new)
    for j, process in enumerate(apart):
        one = predicted(process, new)
        torch.testing.assert_close(both.mean[:, j : j + 1], one.mean)
        torch.testing.assert_close(both.variance[:, j : j + 1], one.variance)
    assert joined.log_marginal() == pytest.approx(sum(float(process.log_marginal()) for process in apart))
    by_products = [process.with_solver(lw.solvers.CG(rtol=1e-10)).log_marginal() for process in (joined, *apart)]
    assert float(by_products[0]) == pytest.approx(float(by_products[1]) + float(by_products[2]))
    assert by_products[0].stderr == pytest.approx(2 * by_products[1].stderr)  # type: ignore[union-attr]


@pytest.mark.parametrize("repeats", [0, 9])
def test_known_noise_of_observations_that_may_repeat_is_that_of_scikit_learn(repeats: int) -> None:
    (x, y), new = data(40 + repeats), normal(5, 3, seed=2)
    x[20 : 20 + repeats] = x[:3].repeat(3, 1)[:repeats]
    relative = torch.linspace(0.5, 3.0, len(x), dtype=torch.float64)
    process = GP(RBF(1.5), lw.Gaussian(NOISE), mean="zero").fit((x, y), relative_noise=relative)
    assert len(process.distinct) == 40
    other = GaussianProcessRegressor(sk.RBF(1.5), alpha=(relative / NOISE).numpy(), optimizer=None).fit(x, y[:, 0])
    mean, covariance = (torch.as_tensor(part) for part in other.predict(new, return_cov=True))
    found = predicted(process, new)
    torch.testing.assert_close(found.mean[:, 0], mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.outputs.marginal().variance[:, 0], covariance.diagonal(), rtol=1e-8, atol=1e-8)
    assert process.log_marginal() == pytest.approx(other.log_marginal_likelihood_value_, rel=1e-9)


SOLVERS = [
    lw.solvers.CG(rtol=1e-8),
    lw.solvers.CG(rtol=1e-8, preconditioner=lw.preconditioners.PivotedCholesky(10)),
    SDD(steps=5_000, batch=16, rtol=1e-6),
    AlternatingProjections(block=12, rtol=1e-8, epochs=200),
]


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_every_solver_finds_the_mean_and_nearly_the_variance(solver: Solver) -> None:
    (x, y), new = data(), normal(5, 3, seed=2)
    exact = GP(Matern(1.5), lw.Gaussian(NOISE)).fit((x, y))
    process = GP(Matern(1.5), lw.Gaussian(NOISE), solver=solver, samples=500, features=500).fit((x, y))
    theirs, ours = predicted(exact, new), predicted(process, new)
    torch.testing.assert_close(ours.mean, theirs.mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        ours.outputs.marginal().variance, theirs.outputs.marginal().variance, rtol=0.3, atol=0.02
    )
    assert isinstance(process.predict(new, joint=True).outputs, Draws)


def test_the_evidence_by_products_has_the_exact_one_within_its_error() -> None:
    x, y = data(200)
    exact = GP(Matern(1.5), lw.Gaussian(NOISE)).fit((x, y)).log_marginal()
    found = GP(Matern(1.5), lw.Gaussian(NOISE), solver=lw.solvers.CG(rtol=1e-8)).fit((x, y)).log_marginal()
    assert abs(float(found) - float(exact)) < 4 * found.stderr < 20  # type: ignore[union-attr]


def test_the_error_of_the_evidence_by_products_is_how_far_its_values_are_apart() -> None:
    found = [
        GP(RBF(1.5), lw.Gaussian(NOISE), solver=lw.solvers.CG(), seed=seed).fit(data(c=2)).log_marginal()
        for seed in range(16)
    ]
    said = sum(each.stderr for each in found) / 16  # type: ignore[union-attr]
    assert 1 / 1.5 < torch.tensor([float(each) for each in found]).std() / said < 1.5


def test_sampled_functions_are_functions() -> None:
    (x, y), new = data(), normal(5, 3, seed=2)
    process = GP(Matern(1.5), lw.Gaussian(NOISE)).fit((x, y))
    drawn = process.draw_functions(3, generator=0)
    assert len(drawn) == 3
    torch.testing.assert_close(drawn(new)[:, 2:3], drawn(new[2:3]))
    torch.testing.assert_close(drawn(new), process.sample_functions(new, 3, generator=0))
    inputs = new.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: drawn(z).sum(1), inputs)


def test_sampled_functions_have_the_moments_of_the_posterior() -> None:
    """At the data, where the noise is most of what is not known."""
    x, y = data(c=2)
    process, new = GP(RBF(1.5), lw.Gaussian(2.0), features=2_000).fit((x, y)), x[:4]
    values = process.sample_functions(new, 4_000, generator=0)
    moments = process.predict(new, joint=True).outputs
    assert isinstance(moments, JointMoments)
    torch.testing.assert_close(values.mean(0), moments.mean, rtol=0, atol=0.05)
    flat = values.flatten(1)
    torch.testing.assert_close(flat.mT.cov(), moments.covariance.reshape(8, 8), rtol=0, atol=0.05)


def test_more_data_come_to_the_same_as_all_at_once() -> None:
    (x, y), new = data(), normal(5, 3, seed=2)
    recipe = GP(Matern(1.5), lw.Gaussian(NOISE), solver=lw.solvers.CG(rtol=1e-10))
    half = recipe.fit((x[:25], y[:25]))
    half.predict(new)
    torch.testing.assert_close(
        predicted(half.updated((x[25:], y[25:])), new).mean, predicted(recipe.fit((x, y)), new).mean
    )


@pytest.mark.filterwarnings("ignore::lapwing.ConvergenceWarning")
@pytest.mark.parametrize("solver", [lw.solvers.CG(rtol=1e-4), SDD(steps=200, batch=32, rtol=1e-9)], ids=["CG", "SDD"])
def test_more_data_are_solved_for_from_what_is_known(solver: Solver) -> None:
    (x, y), new = data(120), normal(5, 3, seed=2)
    recipe = GP(Matern(1.0), lw.Gaussian(5.0), solver=solver, samples=4)
    most, whole = recipe.fit((x[:116], y[:116])), recipe.fit((x, y))
    most.predict(new)
    more = most.updated((x[116:], y[116:]))
    torch.testing.assert_close(more.mean(new), whole.mean(new), rtol=0, atol=0.02)
    if isinstance(solver, SDD):
        assert float(more.solution.residual.max()) < 0.5 * float(whole.solution.residual.max())
    else:
        assert more.solution.iterations < 0.9 * whole.solution.iterations


@pytest.mark.parametrize(
    "solver",
    [lw.solvers.CG(rtol=1e-12), SDD(steps=100, rtol=1e-12), lw.solvers.PrimalSGD(steps=100, rtol=1e-12),
     AlternatingProjections(block=10, rtol=1e-12)],
    ids=lambda solver: type(solver).__name__,
)  # fmt: skip
def test_an_interrupted_solve_says_its_residual_keeps_what_it_has_and_goes_on(
    solver: Solver, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = GP(Matern(1.5), lw.Gaussian(NOISE), solver=solver, mean="zero", progress=True).fit(data())
    calls, residuals = iter(range(12)), list[float]()

    def interrupted(bar: Bar, units: int = 1, said: str | None = None) -> None:
        if said is not None:
            residuals.append(float(said.removeprefix("residual ").split(",")[0]))
        if next(calls, None) is None:
            raise KeyboardInterrupt

    says = r"was interrupted after .* relative residual .* with_solver\(solver\), which goes on"
    with monkeypatch.context() as patch, pytest.warns(ConvergenceWarning, match=says):
        patch.setattr(Bar, "update", interrupted)
        found = process.solution
    rest = data()[1] - process.system.groups[0].problem.precision.dense() @ found.value
    relative = torch.linalg.vector_norm(rest) / torch.linalg.vector_norm(data()[1])
    assert found.stopped == "interrupted" and float(found.residual) == pytest.approx(float(relative))
    assert len(residuals) > 1 and residuals[0] > float(relative)
    further = process.with_solver(lw.solvers.CG(rtol=1e-11))
    assert further.start == (found,) and further.solution.converged
    again = process.with_solver(solver)
    assert again.start == (found,) and float(again.solution.residual) < float(found.residual)
    assert further.with_solver(lw.solvers.CG(rtol=1e-11)) is further


def test_what_is_printed_says_how_much_there_is_and_not_every_number() -> None:
    process = GP(Matern(1.5), features=10).fit(data(30))
    assert repr(process.data).startswith("Observations(inputs [30, 3] from ") and len(repr(process.data)) < 150
    assert repr(process.draw_functions(2)).startswith("FunctionSamples(2 of 3 inputs and 1 outputs, Matern(")


def test_choices_that_make_no_process_are_refused() -> None:
    with unchecked(), pytest.raises(ConfigError, match="kernel"):
        GP(kernel="rbf")  # type: ignore[arg-type]
    with unchecked(), pytest.raises(ConfigError, match="tuple of one kernel an output"):
        GP(kernel=(Matern(), "rbf"))  # type: ignore[arg-type]
    with unchecked(), pytest.raises(ConfigError, match="dtype= to be one of"):
        GP(dtype=torch.float16)


@pytest.mark.parametrize("solver", ["auto", lw.solvers.CG(rtol=1e-10)])
def test_pickle_keeps_the_solves_and_what_they_predict(solver: Any) -> None:
    x, y = normal(15, 2), normal(15, seed=1)
    process = GP(1.0 * lw.gp.Matern(0.7), lw.Gaussian(50.0), solver=solver, samples=4, features=30).fit((x, y))
    expected = process.predict(x)
    again = pickle.loads(pickle.dumps(process))
    assert torch.equal(again.start[0].value, process.solution.value)
    torch.testing.assert_close(again.predict(x).mean, expected.mean)
    torch.testing.assert_close(again.predict(x).std, expected.std)
    classes = lw.GP(1.0 * lw.gp.Matern(0.7), lw.Bernoulli()).fit((x, (y > 0).long()))
    expected = classes.predict(x)
    torch.testing.assert_close(copy.deepcopy(classes).predict(x).probs, expected.probs)


def test_the_solver_follows_the_number_of_observations() -> None:
    assert isinstance(GP().solver_for(100), Cholesky)
    assert isinstance(GP().solver_for(20_000), lw.solvers.CG)
    assert isinstance(GP().solver_for(100_001), SDD)
    assert replace(GP(), solver=SDD(steps=7)).solver_for(3) == SDD(steps=7)


def test_mean_and_functions_are_found_in_one_solve() -> None:
    x, y = data()
    recipe = GP(Matern(0.7), lw.Gaussian(10.0), samples=4, features=20, solver=lw.solvers.CG(rtol=1e-10))
    apart, together = recipe.fit((x, y)), recipe.fit((x, y))
    assert apart.solution.matvecs + apart.functions.solution.matvecs > together.functions.solution.matvecs
    assert together.solution.matvecs == together.functions.solution.matvecs
    torch.testing.assert_close(together.solution.value, apart.solution.value)
    torch.testing.assert_close(together.functions(x), apart.functions(x))


def test_single_precision_predicts_as_double_does() -> None:
    (x, y), new = data(200), normal(30, 3, seed=2)
    recipe = GP(30.0 * Matern(1.5), lw.Gaussian(NOISE))
    exact, single = recipe.fit((x, y)), recipe.fit((x.float(), y.float()))
    theirs, ours = predicted(exact, new), predicted(single, new)
    torch.testing.assert_close(ours.mean.double(), theirs.mean, rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.variance.double(), theirs.variance, rtol=1e-5, atol=0)
    assert float(single.log_marginal()) == pytest.approx(float(exact.log_marginal()), abs=1e-3)


@pytest.mark.parametrize(("kernel", "rho"), [(RBF(1.0), 1e3), (Matern(1.0, 2.5), 30.0)], ids=str)
def test_functions_drawn_have_the_joint_covariance_of_what_the_data_determine(kernel: lw.gp.Kernel, rho: float) -> None:
    """Monte Carlo alone leaves 2 or 3 % of 4,000 functions; features alone would leave 10 to 30 % of any number."""
    x, new = 2 * normal(60, 2), 0.5 * normal(4, 2, seed=3)
    process = GP(kernel, lw.Gaussian(rho), mean="zero", features=2_000).fit((x, x[:, :1].sin()))
    exact = process.predict(new, joint=True).outputs
    assert isinstance(exact, JointMoments)
    covariance = exact.covariance[:, 0, :, 0]
    drawn = process.sample_functions(new, 4_000, generator=0)[..., 0].mT.cov()
    assert float((drawn - covariance).norm() / covariance.norm()) < 0.06


def test_features_follow_the_number_of_functions() -> None:
    assert [GP().features_for(n, 64) for n in (100, 16_384, 1_000_000)] == [6_400, 6_400, 2_000]
    assert GP().features_for(100_000, 1_000) == 2_000 and GP().features_for(50, 3_000, 2) == 2**26 // 6_000
    assert GP(features=7).features_for(100, 64) == 7


def test_functions_of_a_kernel_that_is_rounded_to_single_precision_are_drawn() -> None:
    kernel = lw.gp.Custom(lambda a, b: RBF()(a, b).float(), draw=RBF().features)
    x, new = normal(60, 1), normal(4, 1, seed=3)
    rounded, exact = (GP(each, lw.Gaussian(10.0), features=500).fit((x, x.sin())) for each in (kernel, RBF()))
    drawn, expected = rounded.sample_functions(new, 500, generator=0), predicted(exact, new).outputs.marginal()
    torch.testing.assert_close(drawn.mean(0), expected.mean, rtol=0, atol=0.05)
    torch.testing.assert_close(drawn.var(0)[:, 0], expected.variance[:, 0], rtol=0.3, atol=0)


def test_draws_that_are_off_by_more_than_the_noise_say_so() -> None:
    """A tolerance of a hundredth of the function is ten times the noise, and variances are read from such draws."""
    x = torch.linspace(0, 10, 60, dtype=torch.float64)[:, None]
    recipe = GP(RBF(1.5), lw.Gaussian(1e6), solver=SDD(), mean="zero", samples=8)
    with pytest.warns(ConvergenceWarning, match=r"solver=SDD\(rtol=0\.000"):
        found = recipe.fit((x, x.sin())).functions
    assert found.solution.converged
