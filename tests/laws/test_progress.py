"""No call works in silence: whatever computes does so within a call that is shown once it takes long."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import lapwing as lw
from lapwing.ground import progress
from tests.posterior_cases import STRUCTURES, normal, problem

HEAVY = ("mm", "addmm", "bmm", "baddbmm", "convolution", "_linalg_eigh", "linalg_cholesky_ex", "linalg_qr")
"""Operations that take long where the operands are large."""


HELD = {name: STRUCTURES[name] for name in ("full-weights", "full-functions", "kfac", "nystrom")} | {
    "matrix-free": lw.MatrixFree(lw.solvers.CG()),
    "sampled": lw.Sampled(5, lw.solvers.CG()),
}


class Alone(TorchDispatchMode):
    """Collects the heavy operations that run outside any call that is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.counted, self.silent = 0, set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note an operation, and do it."""
        name = func.overloadpacket.__name__
        if name in HEAVY:
            self.counted += 1
            if progress._DISPLAY.get() is None:
                self.silent.add(name)
        return func(*args, **(kwargs or {}))


def shown(work: Callable[[], object]) -> None:
    """Asserts that work computes something, and nothing in silence."""
    with Alone() as watch:
        work()
    assert watch.counted and not watch.silent


@pytest.mark.parametrize("structure", HELD)
def test_every_verb_of_a_posterior_is_a_call_that_is_shown(structure: str, tmp_path: Path) -> None:
    case = problem("categorical")
    recipe = lw.Laplace(case.likelihood, structure=HELD[structure])
    shown(lambda: case.fit(recipe))
    verbs: dict[str, Callable[[Any], object]] = {
        "predict": lambda posterior: posterior.predict(case.new),
        "joint": lambda posterior: posterior.predict(case.new, joint=True),
        "functions": lambda posterior: posterior.sample_functions(case.new, 3),
        "sample": lambda posterior: posterior.sample(3),
        "evidence": lambda posterior: posterior.log_marginal(),
        "dimension": lambda posterior: posterior.effective_dimension(),
        "evaluate": lambda posterior: lw.evaluate(posterior, (case.x, case.y)),
    }
    if structure != "matrix-free":  # which no file holds
        verbs["save"] = lambda posterior: lw.save(posterior, tmp_path / "it.safetensors")
    heavy = set[str]()
    for name, verb in verbs.items():
        posterior = case.fit(recipe)  # which has solved for nothing yet
        with Alone() as watch:
            verb(posterior)
        assert not watch.silent, name
        if watch.counted:
            heavy.add(name)
    assert {"predict", "joint", "functions", "evaluate"} <= heavy
    if "save" in verbs:
        shown(lambda: lw.load(tmp_path / "it.safetensors", case.model, (case.x, case.y)))


@pytest.mark.filterwarnings("ignore::lapwing.ground.errors.ConvergenceWarning")
def test_tuning_and_comparing_are_calls_that_are_shown() -> None:
    case = problem("categorical")
    posterior = case.fit(lw.Laplace(case.likelihood, structure=lw.KFAC()))
    methods = {"KFAC": lw.Laplace(case.likelihood, structure=lw.KFAC())}
    for method in (None, (case.x, case.y), lw.EM(steps=1)):
        with Alone() as watch:
            lw.tune(posterior, method)
        assert not watch.silent
    shown(lambda: lw.compare(case.model, (case.x, case.y), (case.x, case.y), methods=methods))


def test_gaussian_processes_are_shown(generator: torch.Generator) -> None:
    x = torch.randn(12, 2, dtype=torch.float64, generator=generator)
    process = lw.GP().fit((x, x[:, 0].sin()))
    for verb in (process.predict, process.mean, lambda new: process.sample_functions(new, 2)):
        shown(lambda verb=verb: verb(normal(3, 2)))
    shown(process.log_marginal)


def test_bars_are_made_in_one_place() -> None:
    folder = Path(lw.__file__).parent
    assert [path.name for path in folder.rglob("*.py") if "tqdm" in path.read_text()] == ["progress.py"]
