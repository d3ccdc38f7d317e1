"""Data a Gaussian process cannot use cost a sentence; data that say little cost a warning or a line in the log."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.gp.trend import least_squares
from lapwing.gp.tuning.evidence import warn_of_limits
from lapwing.gp.tuning.tunable import LeastNoise
from lapwing.ground.errors import (
    ConfigError,
    DataError,
    DataWarning,
    LapwingError,
    NumericalError,
    ShapeError,
    TooLargeError,
    UnsupportedError,
)
from tests.checker import unchecked
from tests.posterior_cases import normal, refused

X, Y = normal(12, 3), normal(12, seed=1)


def with_entry(values: Tensor, row: int, value: float = float("nan")) -> Tensor:
    changed = values.clone()
    changed[row] = value
    return changed


FITS: dict[str, tuple[Any, Any, type[LapwingError], str]] = {
    "rows of NaN": (with_entry(with_entry(X, 3), 7), Y, DataError, "in 2 of 12 rows: 3, 7."),
    "many rows of NaN": (X / 0, Y, DataError, "in 12 of 12 rows: 0, 1, 2, 3, 4, ..."),
    "infinite target": (X, with_entry(Y, 4, float("inf")), DataError, "finite targets. Got NaN or infinite ones in 1"),
    "half precision": (X.half(), Y, ShapeError, "float32 or float64"),
    "complex inputs": (X + 0j, Y, ShapeError, "Got torch.complex128"),
    "complex targets": (X, Y + 0j, ShapeError, "real targets"),
    "no columns": (X[:, :0], Y, ShapeError, "[12, 0]"),
    "no outputs": (X, X[:, :0], ShapeError, "[12, 0]"),
    "three axes of targets": (X, Y[:, None, None], ShapeError, "Got torch.float64 [12, 1, 1]"),
    "one number as targets": (X, Y.sum(), ShapeError, "as many targets as inputs"),
    "fewer targets": (X, Y[:5], ShapeError, "as many targets as inputs"),
    "empty": (X[:0], Y[:0], DataError, "at least one example"),
    "words": (X, ["a"] * 12, DataError, "Try"),
    "images": (X.expand(5, 12, 3), Y[:5], ShapeError, "Got torch.float64 [5, 12, 3]. Try x.flatten(1)"),
}


@pytest.mark.parametrize("name", FITS)
def test_data_that_cannot_be_fitted(name: str) -> None:
    x, y, kind, says = FITS[name]
    with unchecked(), refused(kind, says):
        lw.GP().fit((x, y))


def test_whole_inputs_are_numbers() -> None:
    whole = (3 * X).long()
    new = whole[:2]
    expected = lw.GP().fit((whole.double(), Y)).predict(new).mean
    assert torch.equal(lw.GP().fit((whole, Y)).predict(new).mean, expected)


@pytest.mark.parametrize("y", [torch.arange(12), Y > 0])
def test_whole_and_true_targets_are_numbers(y: Tensor) -> None:
    with unchecked():
        assert torch.equal(lw.GP().fit((X, y)).data.targets, y[:, None].double())


@pytest.mark.parametrize(
    ("x", "kind", "says"),
    [
        (X[:, :2], ShapeError, "[m, 3]. Got torch.float64 [12, 2]. Try the columns of the data, in their order"),
        (X[:, 0], ShapeError, "[m, 3]"),
        (X + 0j, ShapeError, "real inputs"),
        (X[:0], DataError, "at least one input"),
        (with_entry(X, 5), DataError, "in 1 of 12 rows: 5."),
        (X.numpy()[:, 0], ShapeError, "[m, 3]"),
        (["a"], DataError, "numbers in values"),
    ],
)
def test_inputs_that_cannot_be_predicted(x: Any, kind: type[LapwingError], says: str) -> None:
    with unchecked(), refused(kind, says):
        lw.GP().fit((X, Y)).predict(x)


def test_functions_check_their_inputs_and_take_any_precision() -> None:
    process = lw.GP(features=10).fit((X, Y))
    functions = process.draw_functions(2)
    with unchecked(), refused(ShapeError, "shape [m, 3]. Got torch.float64 [12, 2]"):
        functions(X[:, :2])
    with unchecked(), refused(ShapeError, "Try x[None] for a single input"):
        functions(X[0])
    assert functions(X.float()).dtype == process.mean(X.float()).dtype == torch.float64


@pytest.mark.parametrize(
    ("kernel", "kind", "says"),
    [
        (lw.gp.RBF((1.0, 1.0)), ShapeError, "inputs with 2 columns. Got 3"),
        (lw.gp.Constant() + lw.gp.RBF((1.0, 1.0)), ShapeError, "inputs with 2 columns. Got 3"),
        (lw.gp.Custom(lambda a, b: a), ShapeError, "a kernel from [n, p] and [m, p] to [n, m]. Got [2, 3]"),
        (lw.gp.Custom(lambda a, b: 1.0), ShapeError, "[n, m]. Got []. Try torch.exp(-torch.cdist(a, b)) as a model"),
        (lw.gp.Columns(lw.gp.RBF(), (0, 3)), ShapeError, "4 columns or more, for active=(0, 3). Got [2, 3]"),
        (lw.gp.Columns(lw.gp.RBF((1.0, 1.0)), (2,)), ShapeError, "inputs with 2 columns. Got 1"),
        (lw.gp.Hamming((1.0, 1.0)), ShapeError, "inputs with 2 columns. Got 3"),
        (lw.gp.Tanimoto(), DataError, "counts, which are not negative"),
    ],
)
def test_a_kernel_for_other_inputs(kernel: lw.gp.Kernel, kind: type[LapwingError], says: str) -> None:
    with unchecked(), refused(kind, says):
        lw.GP(kernel).fit((X, Y))


@pytest.mark.parametrize("made", [torch.Tensor.float, torch.Tensor.numpy])
def test_a_function_of_ones_own_may_return_any_dtype_and_arrays(made: Any) -> None:
    kernels = [lw.gp.Custom(lambda a, b: made(lw.gp.RBF()(a, b))), lw.gp.RBF()]
    ours, theirs = (lw.GP(kernel, lw.Gaussian(10.0)).fit((X, Y)).predict(X[:3]) for kernel in kernels)
    torch.testing.assert_close(ours.mean, theirs.mean, rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.std, theirs.std, rtol=0, atol=1e-5)


def test_a_function_that_is_no_kernel_is_a_sentence() -> None:
    with unchecked(), refused(ConfigError, "two blocks of inputs. Got 3"):
        lw.gp.Custom(3)
    with refused(ConfigError, "kernel to be of type Kernel. Got"), unchecked():
        lw.GP(lambda a, b: a @ b.mT)
    distance = lw.gp.Custom(torch.cdist)
    with refused(NumericalError, "symmetric and positive definite"):
        lw.GP(distance).fit((X, Y)).predict(X)
    with refused(NumericalError, "symmetric and positive definite"):
        lw.GP(distance, lw.Bernoulli()).fit((X, Y > 0)).predict(X)
    with refused(UnsupportedError, "to draw functions from its prior"):
        lw.GP(distance).fit((X, Y)).draw_functions()


TOGETHER = torch.cat([X, X[:, :1] - X[:, 1:2]], 1)


@pytest.mark.parametrize("x", [X[:1], X[:3], X * torch.tensor([1.0, 0.0, 1.0]), TOGETHER])
def test_a_linear_mean_needs_inputs_that_tell_it(x: Tensor) -> None:
    with refused(DataError, "inputs that tell a linear mean"):
        lw.GP(mean="linear").fit((x.double(), Y[: len(x)]))


@pytest.mark.parametrize("noise", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_noise_that_is_none(noise: float) -> None:
    with refused(DataError, "12 positive noise variances"):
        lw.GP().fit((X, Y), relative_noise=torch.full((12,), noise))


def test_inputs_that_are_alike_without_noise_are_a_sentence() -> None:
    alike = torch.cat([X, X[:5] + 1e-12]), torch.cat([Y, Y[:5] + 1])
    with pytest.raises(NumericalError, match=r"noise variance of 1.0e-20"):
        lw.GP(likelihood=lw.Gaussian(1e20)).fit(alike).predict(X)


def test_repeated_inputs_without_noise_are_averaged() -> None:
    twice = torch.cat([X, X[:5]]), torch.cat([Y, Y[:5] + 1])
    found = lw.GP(likelihood=lw.Gaussian(1e20)).fit(twice).mean(X)[:, 0]
    torch.testing.assert_close(found, torch.cat([Y[:5] + 0.5, Y[5:]]))


def test_a_solve_that_never_began_is_a_sentence() -> None:
    with refused(NumericalError, "tells the mean before data"):
        least_squares(torch.ones(3, 1), torch.zeros(3, 1), torch.zeros(3, 2))


def test_a_descent_that_diverges_asks_for_a_shorter_step() -> None:
    process = lw.GP(solver=lw.solvers.SDD(step=1e6, steps=50, batch=4)).fit((X, Y))
    with refused(NumericalError, "a descent that converges"):
        process.mean(X)


@pytest.mark.parametrize(
    ("data", "says"),
    [((X[:, :2], Y), "[m, 3]"), ((X, torch.stack([Y, Y], 1)), "targets of 1 outputs. Got 2")],
)
def test_more_data_of_another_shape_are_refused(data: tuple[Tensor, Tensor], says: str) -> None:
    with refused(ShapeError, says):
        lw.GP().fit((X, Y)).updated(data)


def test_an_interrupted_search_keeps_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    process, looks, look = lw.GP().fit((X, Y)), list[int](), lw.gp.GPPosterior.evidence_and_gradient

    def interrupting(process: Any) -> Any:
        looks.append(1)
        if len(looks) == 4:
            raise KeyboardInterrupt
        return look(process)

    monkeypatch.setattr(lw.gp.GPPosterior, "evidence_and_gradient", interrupting)
    with pytest.warns(lw.ConvergenceWarning, match="interrupted after"):
        found = lw.tune(process)
    assert float(found.log_marginal()) > float(process.log_marginal())


@pytest.mark.filterwarnings("ignore::lapwing.ground.errors.ConvergenceWarning")
def test_noise_that_single_precision_does_not_resolve_is_solved_with_in_double() -> None:
    x = torch.linspace(0, 1, 60)[:, None]
    process, new = lw.GP(100.0 * lw.gp.Matern(2.0), lw.Gaussian(1e7)).fit((x, (6 * x).sin())), x[:-1] + 1 / 118
    found = process.predict(new)
    assert found.mean.dtype == process.sample_functions(new, 2).dtype == torch.float32
    torch.testing.assert_close(found.mean, (6 * new).sin(), rtol=0, atol=5e-3)


def test_repeated_inputs_with_noise_are_averaged() -> None:
    kernel = lw.gp.Matern()
    twice = lw.GP(kernel, lw.Gaussian(10.0)).fit((torch.cat([X, X]), torch.cat([Y + 1, Y - 1])))
    once = lw.GP(kernel, lw.Gaussian(20.0)).fit((X, Y))
    torch.testing.assert_close(twice.mean(X), once.mean(X))


def test_targets_that_never_vary_are_warned_of() -> None:
    with pytest.warns(DataWarning, match=r"all targets of an output are 2.5"):
        process = lw.GP().fit((X, torch.stack([Y, torch.full_like(Y, 2.5)], 1)))
    torch.testing.assert_close(process.mean(X)[:, 1], torch.full_like(Y, 2.5))


def test_one_observation_predicts_and_does_not_tune() -> None:
    process = lw.GP(likelihood=lw.Gaussian(4.0)).fit((X[:1], Y[:1]))
    torch.testing.assert_close(process.mean(X), Y[:1].expand(12)[:, None])
    with refused(DataError, "at least two observations"):
        lw.tune(process)


def test_what_does_not_fit_in_memory_is_not_allocated() -> None:
    many = lw.GP(features=10).fit((X, Y[:, None].expand(12, 5_000)))
    with refused(TooLargeError, "covariances of outputs"):
        many.predict(normal(20, 3))
    with refused(TooLargeError, "60,000 x 60,000"):
        many.predict(X, joint=True)
    with refused(TooLargeError, "functions of at most"):
        many.draw_functions(10_000)


def ended_at(*places: float) -> None:
    names = [*lw.gp.RBF((1.0, 1.0, 1.0)).labels(), "noise variance"]
    unlimited = LeastNoise(torch.zeros(0, dtype=torch.float64), torch.float64)
    warn_of_limits(names, torch.tensor(places).numpy(), [(-1.0, 1.0)] * len(places), unlimited)


def test_dimensions_of_no_use_are_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "lapwing"):
        ended_at(1.0, 0.3, 1.0, 0.0)
    assert "lengthscale[0], lengthscale[2] ended at the upper limit" in caplog.text


@pytest.mark.parametrize(
    ("places", "says"),
    [
        ((1.0, 1.0, 1.0, 0.0), r"lengthscale\[0\], lengthscale\[1\], lengthscale\[2\] ended at a limit"),
        ((-1.0, 1.0, 0.0, 0.0), r"^lengthscale\[0\] ended at a limit"),
        ((0.0, 1.0, 0.0, -1.0), r"^noise variance ended at a limit"),
    ],
)
def test_other_limits_are_warned_of(places: tuple[float, ...], says: str) -> None:
    with pytest.warns(lw.ConvergenceWarning, match=says):
        ended_at(*places)
