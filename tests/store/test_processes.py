"""A Gaussian process on disk: it comes back to the last bit, and what does not fit together is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.gp import FunctionSamples, GPPosterior, GPStep, Kernel, PriorFunctions
from lapwing.gp.regression.system import System
from lapwing.ground.errors import DataError, LapwingError, MismatchError, UnsupportedError
from lapwing.linear.tangent import Tangent
from lapwing.predictive import Regression
from tests.checker import unchecked
from tests.posterior_cases import mlp, normal, refused

X, NEW = normal(30, 2), normal(7, 2, seed=1)
Y = torch.stack([X.prod(1), X.sum(1).sin()], 1) + 0.1 * normal(30, 2, seed=2)
KERNELS: list[Kernel] = [
    0.7 * lw.gp.Matern((0.4, 1.2), 2.5) + 0.1 * lw.gp.Constant(),
    lw.gp.RBF(0.8) * lw.gp.Linear((1.0, 3.0)),
    lw.gp.Periodic(3.0, 0.9),
    lw.gp.Tanimoto(),
    lw.gp.Columns(lw.gp.RationalQuadratic(0.8, 0.5), (1,)) * lw.gp.Columns(lw.gp.Hamming(), (0,)),
]
SOLVERS: list[Any] = [
    "auto",
    lw.solvers.CG(rtol=1e-3, preconditioner=lw.preconditioners.PivotedCholesky(5)),
    lw.solvers.SDD(steps=200, batch=8),
]


def fitted(kernel: Kernel = KERNELS[0], x: Tensor = X, y: Tensor = Y, **options: Any) -> GPPosterior:
    return lw.GP(kernel, lw.Gaussian(80.0), samples=5, features=60, **options).fit((x, y))


def again(saved: Any, folder: Path) -> Any:
    lw.save(saved, folder / "process.safetensors")
    return lw.load(folder / "process.safetensors")


def numbers(process: GPPosterior, x: Tensor) -> list[Tensor]:
    joint, alone = process.predict(x, joint=True), process.predict(x)
    assert isinstance(joint, Regression) and isinstance(alone, Regression)
    draws = process.sample_functions(x, 2, generator=4)
    return [alone.mean, alone.std, joint.mean, joint.std, draws, torch.tensor(float(process.log_marginal()))]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: type(kernel).__name__)
def test_a_process_comes_back_to_the_last_bit(kernel: Kernel, tmp_path: Path) -> None:
    relative = torch.linspace(0.5, 2.0, 30).double()
    process = lw.GP(kernel, lw.Gaussian(80.0), mean="linear").fit((X.abs(), Y), relative_noise=relative)
    process = replace(process, trace=(GPStep({"lengthscale": 2.0}, -1.5), GPStep({"lengthscale": 3.0})))
    loaded = again(process, tmp_path)
    assert loaded.trace == process.trace and repr(loaded) == repr(process) and loaded.kernel == kernel
    for mine, theirs in zip(numbers(loaded, NEW.abs()), numbers(process, NEW.abs()), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("solver", ["auto", lw.solvers.CG(rtol=1e-3)], ids=str)
def test_kernels_and_noises_of_outputs_come_back_to_the_last_bit(solver: Any, tmp_path: Path) -> None:
    recipe = lw.GP((KERNELS[0], KERNELS[2]), lw.Gaussian((80.0, 9.0)), solver=solver, samples=5, dtype=torch.float32)
    process = recipe.fit((X.float(), Y.float()))
    loaded = again(process, tmp_path)
    assert (
        loaded.kernel == process.kernel
        and loaded.likelihood == process.likelihood
        and loaded.system.dtype == process.system.dtype
    )
    for mine, theirs in zip(numbers(loaded, NEW.float()), numbers(process, NEW.float()), strict=True):
        assert torch.equal(mine, theirs)


def test_a_process_of_classes_comes_back_to_the_last_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = lw.GP(KERNELS[1], lw.Categorical()).fit((X.float(), torch.arange(30) % 3))
    process = replace(process, trace=(GPStep({"lengthscale": 2.0}, -1.5),))
    expected, value = process.predict(NEW.float()), process.log_marginal()
    loaded = again(process, tmp_path)
    monkeypatch.setattr(Tangent, "mode", None)
    found = loaded.predict(NEW.float())
    assert torch.equal(found.probs, expected.probs) and found.probs.dtype == torch.float32
    assert loaded.log_marginal() == value and loaded.trace == process.trace and repr(loaded) == repr(process)


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
@pytest.mark.filterwarnings("ignore::lapwing.ground.errors.ConvergenceWarning")
def test_solves_are_kept_and_not_made_again(solver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = fitted(solver=solver, mean="zero")
    loaded, expected = again(process, tmp_path), process.predict(NEW)
    monkeypatch.setattr(System, "solve", None)
    found = loaded.predict(NEW)
    assert torch.equal(found.mean, expected.mean) and torch.equal(found.std, expected.std)  # type: ignore[union-attr]
    assert loaded.settings.solver == solver


def test_a_loaded_process_goes_on_from_where_it_was(tmp_path: Path) -> None:
    process = fitted(lw.gp.RBF(1.5), solver=lw.solvers.CG(rtol=1e-8), y=Y[:, :1])
    process.predict(NEW)
    loaded = again(process, tmp_path)
    for mine, theirs in zip(loaded.updated((NEW, NEW[:, 0])).start, process.solutions(), strict=True):
        assert torch.equal(mine.value, theirs.value)
    assert float(lw.tune(loaded).log_marginal()) > float(process.log_marginal())


@pytest.mark.parametrize("kernel", KERNELS[:3], ids=lambda kernel: type(kernel).__name__)
def test_functions_come_back_to_the_last_bit_and_can_be_differentiated(kernel: Kernel, tmp_path: Path) -> None:
    functions = fitted(kernel).draw_functions(3, generator=9)
    loaded = again(functions, tmp_path)
    assert isinstance(loaded, FunctionSamples) and len(loaded) == 3
    assert torch.equal(loaded(NEW), functions(NEW))
    at, there = (NEW.clone().requires_grad_() for _ in range(2))
    assert torch.equal(
        torch.autograd.grad(loaded(at).sum(), at)[0], torch.autograd.grad(functions(there).sum(), there)[0]
    )


def test_single_precision_stays_single(tmp_path: Path) -> None:
    process = fitted(x=X.float(), y=Y.float())
    assert again(process, tmp_path).predict(NEW.float()).mean.dtype == torch.float32


def test_a_kernel_of_the_users_own_is_refused(tmp_path: Path) -> None:
    kernel = lw.gp.RBF() + lw.gp.Custom(lambda a, b: a @ b.mT)
    with unchecked(), refused(UnsupportedError, "Got Custom"):
        lw.save(fitted(kernel), tmp_path / "process.safetensors")
    assert not (tmp_path / "process.safetensors").exists()


def test_a_network_is_for_posteriors_of_networks(tmp_path: Path) -> None:
    path = tmp_path / "posterior.safetensors"
    lw.save(fitted(), path)
    with unchecked(), refused(MismatchError, "no network, for"):
        lw.load(path, mlp(2))
    lw.save(lw.Laplace(lw.Gaussian()).fit(mlp(2), (normal(9, 3), normal(9, 2))), path)
    with refused(MismatchError, "load(path, model)"):
        lw.load(path)


def shorter(solution: Any) -> Any:
    return replace(solution, value=solution.value[1:])


@pytest.mark.parametrize(
    ("change", "kind", "says"),
    [
        ({"solution": "shorter"}, DataError, "solution of shape [30, 3]"),
        ({"solution": "nan"}, DataError, "finite solution"),
        ({"features": 59}, DataError, "the random features that the functions were drawn with"),
        ({"kernel": {"kind": "Matern", "lengthscale": [1.0, 1.0, 1.0]}}, LapwingError, "inputs with 3 columns"),
        ({"kernel": {"kind": "Sigmoid"}}, DataError, "'Sigmoid'"),
        ({"settings": {"mean": "quadratic"}}, LapwingError, "settings.mean as one of"),
        ({"seed": 3}, DataError, "draws other numbers from seed 3"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    change: dict[str, Any], kind: type[LapwingError], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = fitted()
    solution, functions = process.solution, process.functions
    if change.get("solution") == "shorter":
        process.solves.solution = shorter(solution)
    elif change.get("solution") == "nan":
        process.solves.solution = replace(solution, value=solution.value / 0)
    elif "features" in change or "seed" in change:
        prior = functions.prior
        count, seed = change.get("features", prior.count), change.get("seed", prior.seed)
        altered = PriorFunctions(prior.features, prior.weights, count, seed)
        process.solves.functions = replace(functions, prior=altered)
    write = lw.store.files.Archive.write

    def changed(archive: Any, path: Path, header: dict[str, Any], tensors: Any) -> None:
        write(archive, path, header | {k: v for k, v in change.items() if isinstance(v, dict)}, tensors)

    monkeypatch.setattr(lw.store.files.Archive, "write", changed)
    with refused(kind, says):
        again(process, tmp_path)
