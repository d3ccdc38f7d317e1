"""What is exported runs where lapwing cannot be imported, and says what the posterior says."""

from __future__ import annotations

import copy
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.ground.errors import ConfigError, UnsupportedError
from lapwing.posteriors.predictive_module import quantity
from tests.checker import unchecked
from tests.posterior_cases import STRUCTURES, WEIGHTS, labels, normal, problem, refused

SIZES = (1, 7, 256)
"""Examples that a program is called with."""

ELSEWHERE = """
import json, sys
sys.modules["lapwing"] = None  # cannot be imported
import torch
for file in sys.argv[1:]:
    served = torch.export.load(file).module()
    expected = torch.load(file + ".expected")
    errors = {}
    for n in (1, 7, 256):
        found = served(*(value[:n] for value in expected["inputs"]))
        for name, value in expected["answers"].items():
            errors[name] = max(errors.get(name, 0.0), float((found[name] - value[:n]).abs().max()))
    print(json.dumps(errors))
"""


def network(name: str, structure: Any, weights: str = "all", dtype: torch.dtype = torch.float64) -> Any:
    """A posterior of a network, in some type."""
    case = problem(name)
    model = copy.deepcopy(case.model).to(dtype)
    data = (case.x.to(dtype) if case.x.is_floating_point() else case.x, case.y)
    return lw.Laplace(case.likelihood, structure=structure, weights=WEIGHTS[weights]).fit(model, data)


def process(likelihood: Any, targets: Tensor, **options: Any) -> Any:
    """A Gaussian process of three inputs."""
    return lw.GP(1.3 * lw.gp.Matern(1.5) + lw.gp.Linear(), likelihood, **options).fit((normal(12, 3), targets))


CASES: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "last layer": (
        lambda: network("images", lw.Full(), "last-layer"),
        ("probs", "outputs_std", "entropy", "epistemic"),
    ),
    "last layer, KFAC": (lambda: network("categorical", lw.KFAC(), "last-layer"), ("probs", "outputs_std", "labels")),
    "last layer, float32": (
        lambda: network("gaussian", lw.Full(), "last-layer", torch.float32),
        ("mean", "std"),
    ),
    "KFAC": (lambda: network("images", lw.KFAC()), ("probs", "outputs_std", "confidence")),
    "diagonal": (lambda: network("tokens", lw.Diagonal()), ("probs", "outputs_std")),
    "Nyström": (lambda: network("gaussian", STRUCTURES["nystrom"]), ("mean", "std", "covariance")),
    "draws": (lambda: network("poisson", lw.Sampled(6)), ("mean", "std", "variance")),
    "full": (lambda: network("heteroscedastic", lw.Full(view="functions")), ("mean", "std")),
    "Gaussian process": (
        lambda: process(lw.Gaussian(50.0), normal(12, 2, seed=1), mean="linear"),
        ("mean", "std", "epistemic"),
    ),
    "process with Student-t noise": (
        lambda: process(lw.StudentT(3.0, 0.2), normal(12, 1, seed=1)),
        ("mean", "std", "uncertainty"),
    ),
    "process of classes": (lambda: process(lw.Categorical(), labels(12, classes=3)), ("probs", "outputs_std")),
}


FEW = ("KFAC", "Gaussian process")
"""Those of every run of the tests: a few seconds each. All are exported where the packages of adapters are."""

NAMES = tuple(CASES) if importlib.util.find_spec("onnxruntime") else FEW


def examples(posterior: Any, n: int = max(SIZES)) -> Tensor:
    """Inputs like those of the data, as many."""
    known = posterior.data.inputs if hasattr(posterior.data, "inputs") else posterior.data.first()
    if known.is_floating_point():
        return normal(n, *known.shape[1:], seed=3).to(known)
    return labels(n, *known.shape[1:], classes=5, seed=3)


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    """By how much each answer differs in a process without lapwing, for each case."""
    folder = tmp_path_factory.mktemp("exported")
    files: list[Path] = []
    for number, case in enumerate(NAMES):
        make, names = CASES[case]
        posterior = make()
        files.append(folder / f"{number}.pt2")
        with unchecked():
            lw.export(posterior, files[-1], names)
        x = examples(posterior)
        prediction = posterior.predict(x)
        answers = {name: quantity(prediction, name) for name in names}
        torch.save({"inputs": (x,), "answers": answers}, f"{files[-1]}.expected")
    command = [sys.executable, "-c", ELSEWHERE, *map(str, files)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(zip(NAMES, map(json.loads, ran.stdout.strip().split("\n")), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_a_process_without_lapwing_agrees(errors: dict[str, dict[str, float]], name: str) -> None:
    assert set(errors[name]) == set(CASES[name][1])
    assert max(errors[name].values()) < (1e-4 if "float32" in name else 1e-6), errors[name]


def test_drawn_networks_are_averaged_as_they_are() -> None:
    posterior = network("categorical", lw.KFAC())
    with unchecked():
        module = posterior.module(("probs",), linearised=False, samples=5, generator=3)
    x = normal(4, 3, seed=2)
    expected = posterior.predict(x, linearised=False, samples=5, generator=3).probs
    torch.testing.assert_close(module(x)["probs"], expected, rtol=1e-9, atol=1e-12)


def test_noise_is_in_or_out_by_name_and_tensors_are_in_buffers() -> None:
    posterior = process(lw.Gaussian(50.0), normal(12, 1, seed=1))
    x = normal(3, 3, seed=2)
    with unchecked():
        module = posterior.module(("std", "outputs_std"))
    prediction = posterior.predict(x)
    torch.testing.assert_close(module(x)["std"], prediction.std)
    torch.testing.assert_close(module(x)["outputs_std"], prediction.outputs.std)
    assert {"lapwing" in type(part).__module__ for part in module.modules()} == {False}
    assert not list(module.parameters()) and sum(each.numel() for each in module.buffers()) >= 12 * 12


def test_what_cannot_be_exported_says_so(tmp_path: Path) -> None:
    posterior = network("gaussian", lw.KFAC())
    with refused(ConfigError, "each of outputs"):
        posterior.module(("probabilities",))
    with refused(ConfigError, "outputs among mean, std"):
        posterior.module(("probs",))
    with refused(UnsupportedError, "in its training data"):
        network("gaussian", lw.MatrixFree()).module()
    with refused(UnsupportedError, "with_solver"):
        process(lw.Gaussian(50.0), normal(12, 1), solver=lw.solvers.CG(rtol=1e-6)).module()
    with refused(UnsupportedError, "three digits"):
        posterior.half()
    with refused(ConfigError, "a directory that exists"):
        lw.export(posterior, tmp_path / "nowhere" / "model.pt2")
    for name in ("model.pth", "model"):
        with refused(ConfigError, ".pt2"):
            lw.export(posterior, tmp_path / name)
    assert not list(tmp_path.iterdir())
    with unchecked(), refused(ConfigError, "the posterior"):
        lw.export(object(), tmp_path / "model.pt2")  # pyright: ignore[reportArgumentType]
    lw.save(posterior, tmp_path / "posterior.safetensors")
    loaded: Any = lw.load(tmp_path / "posterior.safetensors", problem("gaussian").model)
    with refused(ConfigError, "example="):
        loaded.module()
