"""A module gives what ``predict`` gives, by the same names, for every likelihood, and refuses other names."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.ground.errors import ConfigError
from lapwing.posteriors.predictive_module import OUTPUT_MOMENTS, QUANTITIES, quantities_asked, quantity
from tests.checker import unchecked
from tests.posterior_cases import PROBLEMS, labels, normal, problem, refused

PROCESSES = {
    "process": (lw.Gaussian(50.0), normal(12, 2, seed=1)),
    "process-of-counts": (lw.Poisson(), None),
    "process-of-far-targets": (lw.StudentT(3.0, 0.2), normal(12, 1, seed=1)),
}
"""Gaussian processes: likelihood and targets; none for counts."""

LIKELIHOODS = (*PROBLEMS, *PROCESSES)

EXPORTED = (
    "gaussian",
    "categorical",
    "bernoulli",
    "poisson",
    "negative-binomial",
    "student-t",
    "heteroscedastic",
    *PROCESSES,
)
"""Those whose modules are recorded and written: some seconds each."""

FEW = ("poisson",)
"""Those of every run of the tests; all are where the packages of adapters are."""


def case_of(name: str) -> tuple[Any, Tensor]:
    """A posterior under some likelihood, and new inputs."""
    if name in PROCESSES:
        likelihood, targets = PROCESSES[name]
        x = normal(12, 3)
        y = labels(12, 1, classes=4) if targets is None else targets
        return lw.GP(1.3 * lw.gp.Matern(1.5), likelihood).fit((x, y)), normal(4, 3, seed=2)
    case = problem(name)
    return case.fit(lw.Laplace(case.likelihood, weights=lw.LastLayer())), case.new


def expected_of(prediction: Any) -> dict[str, Tensor]:
    """What is predicted: attributes by their own names, and moments of the outputs behind the targets."""
    found: dict[str, Tensor] = {}
    for name in QUANTITIES:
        if name in OUTPUT_MOMENTS:
            found[name] = getattr(prediction.latent, name.removeprefix("outputs_"))
        elif hasattr(prediction, name):
            found[name] = getattr(prediction, name)
    return found


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_every_name_is_what_predict_has_under_it(name: str) -> None:
    posterior, x = case_of(name)
    prediction = posterior.predict(x)
    expected = expected_of(prediction)
    torch.testing.assert_close({each: quantity(prediction, each) for each in expected}, expected)
    for missing in set(QUANTITIES) - set(expected):
        with refused(ConfigError, "outputs among"):
            quantity(prediction, missing)


@pytest.mark.parametrize("name", EXPORTED if importlib.util.find_spec("onnxruntime") else FEW)
def test_modules_and_files_give_the_same(name: str, tmp_path: Path) -> None:
    posterior, x = case_of(name)
    expected = expected_of(posterior.predict(x))
    names = tuple(expected)
    with unchecked():
        module = posterior.module(names)
        lw.export(posterior, tmp_path / "model.pt2", names)
        exported: Any = torch.export.load(tmp_path / "model.pt2").module()
        torch.testing.assert_close(dict(module(x)), expected, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(dict(exported(x)), expected, rtol=1e-7, atol=1e-9)


def test_moments_of_classes_are_refused_and_those_of_logits_named() -> None:
    posterior, _ = case_of("categorical")
    assert quantities_asked(None, labels=True) == ("probs", "outputs_std")
    with refused(ConfigError, "outputs_std"):
        posterior.module(("probs", "std"))


@pytest.mark.parametrize("name", ["categorical", "process"])
def test_a_string_is_no_sequence_of_names(name: str) -> None:
    posterior, _ = case_of(name)
    with refused(ConfigError, "outputs=('mean',)"):
        posterior.module("mean")
    with refused(ConfigError, "names of what is predicted"):
        posterior.module(())
