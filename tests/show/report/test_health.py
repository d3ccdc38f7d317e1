from __future__ import annotations

import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lapwing as lw
from lapwing.ground.errors import ConfigError
from tests.posterior_cases import refused

DATA = torch.Generator().manual_seed(0)


def images(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.arange(n) % 3
    return torch.eye(3)[y].repeat_interleave(3, 1).view(n, 1, 3, 3) + 0.6 * torch.randn(n, 1, 3, 3, generator=DATA), y


@pytest.fixture(scope="module")
def task() -> dict[str, Any]:
    """A small classifier of images, trained, with its posterior and what it has not seen."""
    torch.manual_seed(0)
    train, test = images(60), images(45)
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 12), nn.Tanh(), nn.Linear(12, 3))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(80):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(train[0]), train[1]).backward()
        optimiser.step()
    fitted = lw.Laplace(lw.Categorical(), structure=lw.KFAC()).fit(model, train)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lw.ConvergenceWarning)
        tuned = lw.tune(fitted, lw.EvidenceGradient())
    return {"model": model, "train": train, "test": test, "fitted": fitted, "posterior": tuned}


@pytest.fixture(scope="module")
def found(task: dict[str, Any]) -> lw.Health:
    return lw.health(task["posterior"], task["test"])


def test_the_scores_are_those_of_evaluate(task: dict[str, Any], found: lw.Health) -> None:
    before, after = (row.runs[0] for row in found.comparison.rows)
    assert after == lw.evaluate(task["posterior"], task["test"])
    assert before == lw.evaluate(lw.baselines.PlainNetwork(task["model"]), task["test"])


def test_the_least_known_inputs_are_those_of_largest_epistemic_uncertainty(
    task: dict[str, Any], found: lw.Health
) -> None:
    x, y = task["test"]
    p = task["posterior"].predict(x)
    order = p.epistemic.argsort(descending=True)[:12].tolist()
    assert [each.place for each in found.least_known] == order
    first = found.least_known[0]
    assert torch.equal(first.inputs, x[order[0]][None]) and first.target == float(y[order[0]])
    assert first.predicted == float(p.labels[order[0]]) and first.strangeness == float(p.epistemic[order[0]])
    batches = [(x[:20], y[:20]), (x[20:], y[20:])]
    again = lw.health(task["posterior"], batches, keep=5, draws=0).least_known
    assert [each.place for each in again] == order[:5]


def test_it_tells_whose_curvature_it_is_and_that_draws_are_right(task: dict[str, Any], found: lw.Health) -> None:
    said = str(found)
    assert "The curvature is that of the training data given." in said and "draws of" in said and "agree" in said
    other = lw.health(task["posterior"], task["test"], train=images(60), draws=0)
    assert any("other data than these training data" in sentence for sentence in other.warnings)
    without = replace(task["posterior"], model=replace(task["posterior"].model, source=None))
    assert "not looked at: give train=" in str(lw.health(without, task["test"], draws=0))
    seen = lw.health(task["fitted"], task["train"], draws=0)
    assert any("the data it was trained on" in sentence for sentence in seen.warnings)
    assert any("it was not tuned" in sentence for sentence in seen.warnings)


def test_what_makes_predictions_worse_is_a_warning(task: dict[str, Any]) -> None:
    weak = lw.Laplace(lw.Categorical(), prior=lw.Isotropic(1e-4), structure=lw.Diagonal())
    found = lw.health(weak.fit(task["model"], task["train"]), task["test"], draws=0)
    assert any("less likely than the network's" in sentence for sentence in found.warnings)
    assert any("its confidences are off by" in sentence for sentence in found.warnings)


def test_the_page_needs_nothing_but_itself(found: lw.Health, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    page = found.write(tmp_path / "health.html").read_text(encoding="utf-8")
    titles = ["Calibration before", "Calibration after", "Selective risk", "Least known inputs", "Tuning"]
    titles.append(f"example {found.least_known[0].place}")
    assert all(title in page for title in titles)
    assert len(re.findall(r"data:image/svg", page)) == 5 and "http" not in re.sub(r'base64,[^"]*', "", page)


def test_real_targets(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    torch.manual_seed(0)
    x = torch.randn(60, 2)
    y = x.sum(1, keepdim=True) + 0.3 * torch.randn(60, 1)
    posterior = lw.tune(lw.Laplace(lw.Gaussian()).fit(nn.Linear(2, 1), (x[:40], y[:40])))
    found = lw.health(posterior, (x[40:], y[40:]), keep=3)
    assert "picp" in found.comparison.rows[1].runs[0] and len(found.least_known) == 3
    assert all(each.image is None for each in found.least_known)
    assert "Coverage" in found.write(tmp_path / "health.html").read_text(encoding="utf-8")
    stubborn = posterior.with_hyperparameters(posterior.prior, lw.Gaussian(1e-4))
    worse = lw.health(stubborn, (x[40:], y[40:]), draws=0)
    assert any("95 % intervals have 100 %" in sentence for sentence in worse.warnings)


def test_what_is_no_posterior_is_refused(task: dict[str, Any]) -> None:
    with refused(ConfigError, "the posterior"):
        lw.health(lw.baselines.PlainNetwork(task["model"]), task["test"])
    with refused(ConfigError, "keep"):
        lw.health(task["posterior"], task["test"], keep=0)
