"""The study of tuning without held-out data: its rows, and what the last one counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import lapwing as lw
from benchmarks.command import Setting, main
from benchmarks.tasks import Task
from studies import tuning
from studies.pairs import recipes
from tests.posterior_cases import normal, seeded


def row(name: str, difference: float, stderr: float, strongest: bool = False) -> dict[str, Any]:
    """A row whose plain NLL is 1 nat."""
    found = {"pair": name, "posterior": "KFAC", "plain": 1.0, "nll": 1.0 + difference, "from_plain": difference}
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


def test_a_row_compares_the_posterior_with_the_network_and_a_temperature() -> None:
    model = seeded(lambda: torch.nn.Linear(3, 3)).float().eval()
    x, y = normal(90, 3).float(), torch.arange(90) % 3
    case = Task("case", model, (x[:30], y[:30]), (x[30:50], y[30:50]), (x[50:], y[50:]), 30)
    found = tuning.measured(case, "KFAC", structure=lw.KFAC())
    with torch.no_grad():
        plain = torch.nn.functional.cross_entropy(model(x[50:]), y[50:])
    assert found["plain"] == pytest.approx(float(plain), rel=1e-5)
    assert found["from_plain"] == pytest.approx(found["nll"] - found["plain"], abs=1e-6)
    assert found["from_temperature"] == pytest.approx(found["nll"] - found["temperature"], abs=1e-6)
    assert found["strongest_prior"] == (found["precision"] > 0.99e6)


def test_the_study_covers_twenty_pairs_and_writes_its_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(list(recipes(Setting()))) + 2 >= 20
    monkeypatch.setattr(tuning, "recipes", lambda _: [r for r in recipes(Setting()) if r[0].startswith("wine 80")][:1])
    main({"tuning": tuning.STUDY}, ["--quick", "--json", str(tmp_path / "report.json")])
    rows = json.loads((tmp_path / "report.json").read_text())["rows"]
    assert [r["posterior"] for r in rows[:-1]] == ["KFAC", "64 draws"] and rows[-1]["verdict"]
    assert rows[-1]["pairs"] == 2
