"""Every study runs in a hurry on generated data, and keeps what an interrupted run has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.command import Study, main
from studies.gp import table
from studies.gp.__main__ import STUDIES

pytestmark = pytest.mark.filterwarnings("ignore::lapwing.ground.errors.ConvergenceWarning")


@pytest.mark.parametrize("name", STUDIES)
def test_each_study_runs(name: str, tmp_path: Path) -> None:
    if name == "search":
        pytest.importorskip("gpytorch")
    report = tmp_path / "report.json"
    main({name: STUDIES[name], "": Study(lambda _: ())}, [name, "--quick", "--seeds", "1", "--json", str(report)])
    rows = json.loads(report.read_text())["rows"]
    assert rows and all(row["study"] == name for row in rows)
    assert [row["failure"] for row in rows if row.get("failure")] == []


def test_an_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report, studies = tmp_path / "report.json", {"uci": table.STUDY}
    words = ["--quick", "--only", "pol", "bike", "--json", str(report), "--resume", str(report)]
    main(studies, [*words, "--splits", "1"])
    first = json.loads(report.read_text())["rows"][:2]
    measured: list[tuple[str, int]] = []
    monkeypatch.setattr(
        table, "measured", lambda _, name, number: measured.append((name, number)) or {"rmse": 1.0, "nll": 0.0}
    )
    main(studies, [*words, "--splits", "2"])
    rows = json.loads(report.read_text())["rows"]
    assert measured == [("pol", 1), ("bike", 1)]
    assert [row["rmse"] for row in rows[:2]] == [row["rmse"] for row in first]
    assert all("command" in row["source"] for row in rows[:2]) and "source" not in rows[2]


def test_a_mean_as_good_as_published_is_told_of() -> None:
    def verdict(rmse: float, nll: float) -> tuple[bool, bool]:
        row = {"summary": True, "data": "pol", "rmse": rmse, "nll": nll, "seeds": 5}
        (found,) = table.verdicts([row, {"data": "pol"}])
        return found["rmse"], found["nll"]

    assert verdict(0.091, -1.174) == (True, True)
    assert verdict(0.097, -1.19) == (False, True)
    assert verdict(0.07, -1.15) == (True, False)
