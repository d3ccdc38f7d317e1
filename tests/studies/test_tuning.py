"""The study of tuning without held-out data: its rows, and what the last one counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import lapwing as lw
from benchmarks.command import Setting, main
from benchmarks.tasks import RESNETS, Task
from studies import pairs, tuning, unseen
from tests.posterior_cases import normal, seeded


def row(name: str, difference: float, stderr: float, strongest: bool = False) -> dict[str, Any]:
    """A row whose plain NLL is 1 nat."""
    found = {
        "pair": name,
        "posterior": "KFAC",
        "chooses": False,
        "plain": 1.0,
        "nll": 1.0 + difference,
        "from_plain": difference,
    }
    return found | {"from_plain_stderr": stderr, "strongest_prior": strongest}


def test_the_verdict_counts_all_pairs_and_ties_apart() -> None:
    found = [row("helped", -0.5, 0.1), row("harmed", 0.3, 0.1), row("unclear", 0.1, 0.1)]
    found += [row("tie, worse", 1e-5, 1e-6, True), row("tie, better", -1e-5, 1e-6, True)]
    found += [row("a strong prior that harms", 0.01, 0.001, True), row("close, not the strongest", 1e-4, 1e-5)]
    last = tuning.verdict(found)
    assert (last["pairs"], last["better"], last["worse"], last["ties"]) == (7, 2, 4, 2)
    assert last["worse_pairs"][:2] == ["harmed, KFAC", "tie, worse, KFAC"]
    assert (last["better_without_ties"], last["worse_without_ties"]) == (1, 3)
    assert "tie, worse, KFAC" not in last["worse_pairs_without_ties"]
    product = 0.5 * 1.3 * 1.1 * (1 + 1e-5) * (1 - 1e-5) * 1.01 * (1 + 1e-4)
    assert last["nll_over_plain"] == pytest.approx(product ** (1 / 7), rel=1e-12)
    assert "temperature_over_plain" not in last
    some = tuning.verdict([row("one", -0.5, 0.1) | {"temperature": 0.5}, row("other", 0.3, 0.1) | {"temperature": 2.0}])
    assert some["temperature_over_plain"] == pytest.approx(1.0)


def test_rows_on_which_the_rule_was_chosen_are_counted_apart() -> None:
    found = [row("helped", -0.5, 0.1) | {"chooses": True}, row("unclear", 0.1, 0.1), row("harmed", 0.3, 0.1)]
    choose, test = tuning.verdicts(found)
    assert (choose["verdict"], choose["pairs"], choose["better"]) == ("rows that choose", 1, 1)
    assert (test["verdict"], test["pairs"], test["worse"]) == ("rows that test", 2, 1)
    assert [last["verdict"] for last in tuning.verdicts(found[1:])] == ["rows that test"]


def test_a_row_compares_the_posterior_with_the_network_and_a_temperature() -> None:
    model = seeded(lambda: torch.nn.Linear(3, 3)).float().eval()
    x, y = normal(90, 3).float(), torch.arange(90) % 3
    case = Task("case", model, (x[:30], y[:30]), (x[30:50], y[30:50]), (x[50:], y[50:]), 30)
    found = tuning.measured(case, {"structure": lw.KFAC()}, {"examples": 20})
    with torch.no_grad():
        plain = torch.nn.functional.cross_entropy(model(x[50:]), y[50:])
    assert found["plain"] == pytest.approx(float(plain), rel=1e-5)
    assert found["from_plain"] == pytest.approx(found["nll"] - found["plain"], abs=1e-6)
    assert found["from_temperature"] == pytest.approx(found["nll"] - found["temperature"], abs=1e-6)
    assert found["strongest_prior"] == (found["precision"] > 0.99e6)


def test_the_study_tests_on_ten_networks_that_it_does_not_choose_on() -> None:
    setting = Setting(data=Path("data"))
    found = list(tuning.cases(setting))
    choosing = {case.name for case in found if case.chooses}
    testing = {case.name for case in found if not case.chooses}
    assert not choosing & testing
    made_later = {name for name, _ in unseen.recipes(setting)}
    assert len(made_later) >= 10 and made_later <= testing
    assert len(list(pairs.recipes(setting))) + 2 >= 20
    assert {case.name for case in tuning.cases(Setting(only=("resnets",)))} == set(RESNETS)


def test_the_study_writes_its_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipes = [recipe for recipe in pairs.recipes(Setting()) if recipe[0].startswith("wine 80")][:1]
    monkeypatch.setattr(pairs, "recipes", lambda _: recipes)
    main({"tuning": tuning.STUDY}, ["--quick", "--json", str(tmp_path / "report.json")])
    rows = json.loads((tmp_path / "report.json").read_text())["rows"]
    assert [r["posterior"] for r in rows[:-1]] == ["KFAC", "64 draws"]
    assert rows[-1]["verdict"] == "rows that choose" and rows[-1]["pairs"] == 2
