"""Every study runs in a hurry, and goes on where it was interrupted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.command import Setting, Study, main
from benchmarks.report import Row
from studies.ct import design, table
from studies.ct.__main__ import STUDIES

pytestmark = pytest.mark.filterwarnings("ignore::lapwing.ground.errors.ConvergenceWarning")


@pytest.mark.parametrize("name", STUDIES)
def test_each_study_runs(name: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    main({name: STUDIES[name], "": Study(lambda _: ())}, [name, "--quick", "--seeds", "1", "--json", str(report)])
    rows = json.loads(report.read_text())["rows"]
    assert rows and all(row["study"] == name for row in rows)
    assert [row["failure"] for row in rows if row.get("failure")] == []


def test_designs_are_compared_image_by_image_and_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("random", design.EVENLY)
    report, words = tmp_path / "report.json", ["--quick", "--only", *names, "--json", str(tmp_path / "report.json")]
    monkeypatch.setattr(design.Scene, "pilot", None)
    main({"design": design.STUDY}, [*words, "--images", "1"])
    first = json.loads(report.read_text())["rows"]
    judged: list[int] = []

    def again(scene: design.Scene, method: str) -> list[Row]:
        judged.append(scene.seed)
        row: Row = {"method": method, "size": 8, "seed": scene.seed}
        return [row | {"angles": count, "psnr": 3.0 * (method == "random")} for count in (2, 4)]

    monkeypatch.setattr(design, "judged", again)
    main({"design": design.STUDY}, [*words, "--images", "3", "--resume", str(report)])
    rows = json.loads(report.read_text())["rows"]
    assert judged == [1, 1, 2, 2] and [row["psnr"] for row in rows[:4]] == [row["psnr"] for row in first[:4]]
    (last,) = (row for row in rows if row.get("verdict") == "random over equidistant, dB")
    psnr = {(row["method"], row["angles"]): row["psnr"] for row in first if not row.get("summary") and "psnr" in row}
    more = psnr["random", 4] - psnr[design.EVENLY, 4]
    assert last["angles"] == 4 and last["more"] == pytest.approx((more + 6) / 3)
    assert last["more_stderr"] == pytest.approx(abs(more - 3) / 3)


def test_seeds_of_the_table_can_be_run_apart() -> None:
    work = {table.EM: lambda scan: {"measured": scan.seed}}
    more = table.STUDY.more({"first": 1}, quick=False)
    found = list(table.rows(Setting(seeds=3, only=(table.EM,), more=more), work))
    assert [row["measured"] for row in found] == [1, 2] == [row["seed"] for row in found]


def test_the_table_says_which_method_is_better_how_soon_it_settles_and_what_it_covers() -> None:
    em: Row = {"method": "g-prior EM", "precisions_2": [1.0, 0.5, 0.101, 0.1], "seconds_2": 2.0, "rows_seconds": 6.0}
    rows: list[Row] = [
        row | {"seed": seed, "marginal": score + seed * (score > 2), "patches": score, "coverage": 0.93 + 0.07 * seed}
        for seed in (0, 1)
        for row, score in ((em, 3.0), ({"method": "TV-PredCP", "seconds": 50.0}, 1.0))
    ]
    found = {row["verdict"]: row for row in table.verdicts(rows)}
    assert found["g-prior EM over TV-PredCP, marginal"]["more"] == pytest.approx(2.5)
    assert found["g-prior EM over TV-PredCP, marginal"]["more_stderr"] == pytest.approx(0.5)
    name = "seconds of TV-PredCP over those of g-prior EM, 2 draws, each with the rows of T J"
    assert found[name]["ratio"] == (50.0 + 6.0) / (2.0 + 6.0)
    assert found["EM steps with two draws"] == {"verdict": "EM steps with two draws", "steps": [2, 2], "met": True}
    assert not found["g-prior EM covers 92 to 99 %"]["met"]
    assert not any("MC dropout" in verdict for verdict in found)
