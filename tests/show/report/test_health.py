from __future__ import annotations

import math
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
from lapwing.predictive import Classification, Regression
from lapwing.show.report.health import less_likely
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
    assert "60 of these 60 inputs are among the data it was trained on. Try data that it has not seen" in seen.warnings
    assert any("it was not tuned" in sentence for sentence in seen.warnings)


def test_what_makes_predictions_worse_is_a_warning(task: dict[str, Any]) -> None:
    weak = lw.Laplace(lw.Categorical(), prior=lw.Isotropic(1e-4), structure=lw.Diagonal())
    found = lw.health(weak.fit(task["model"], task["train"]), task["test"], draws=0)
    (sentence,) = [each for each in found.warnings if "targets are less likely than by the network" in each]
    rows = [row.runs[0]["nll"] for row in found.comparison.rows]
    assert re.search(f"by {rows[1] - rows[0]:.2g} ± .* nats an example", sentence)
    assert any("its confidences are off by" in sentence for sentence in found.warnings)


def test_a_part_of_the_training_data_is_known_again_and_other_data_are_not(task: dict[str, Any]) -> None:
    x, y = task["train"]
    order = torch.arange(59, 29, -1)
    part = lw.health(task["posterior"], [(x[order].double(), y[order])], draws=0)
    assert any("30 of these 30 inputs" in sentence for sentence in part.warnings)
    other = lw.health(task["posterior"], task["test"], draws=0)
    assert not any("inputs are among" in sentence for sentence in other.warnings)


def test_a_difference_of_chance_is_no_warning() -> None:
    """Of two examples, one likelier and one as much less likely."""
    before = {"log_prob": torch.tensor([-1.0, -2.0, -1.5])}
    after = {"log_prob": torch.tensor([-1.2, -1.9, -1.6])}
    found = less_likely(Regression.losses_of(before), Regression.losses_of(after))
    assert found.value == pytest.approx(0.2 / 3) and found.stderr == pytest.approx(0.0882, rel=1e-3)
    probs = {"probs": torch.tensor([[0.5, 0.5], [0.1, 0.9]]), "targets": torch.tensor([-100, 1])}
    losses = Classification.losses_of(probs)
    assert math.isnan(less_likely(losses, losses).stderr) and less_likely(losses, losses).value == 0


def test_what_it_was_tuned_by_and_the_unit_of_what_is_unknown_are_told(task: dict[str, Any], found: lw.Health) -> None:
    assert found.comparison.rows[1].tuned_by == "evidence"
    assert "tuned by" not in found.known.table()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lw.ConvergenceWarning)
        tuned = lw.tune(task["fitted"], task["test"])
    by_predictions = lw.health(tuned, task["test"], draws=0)
    assert by_predictions.comparison.rows[1].tuned_by == "predictions"
    assert by_predictions.unknown == "epistemic uncertainty, nats"
    untuned = lw.health(task["fitted"], task["test"], draws=0)
    assert untuned.comparison.rows[1].tuned_by == "nothing"
    assert untuned.unknown == "uncertainty, 1 − confidence"


def test_a_process_is_refused_with_what_scores_it(task: dict[str, Any]) -> None:
    with refused(ConfigError, "evaluate(posterior, test) scores a Gaussian process"):
        lw.health(lw.GP().fit((torch.randn(5, 2), torch.randn(5))), task["test"])


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
