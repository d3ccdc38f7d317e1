from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.command import main
from studies.sampled.__main__ import STUDIES

DRAWN = ("evidence", "training")


@pytest.mark.filterwarnings("ignore::lapwing.ground.errors.ConvergenceWarning")
@pytest.mark.parametrize("name", STUDIES)
def test_each_study_runs_and_says_what_its_seeds_mean(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report, drawn = tmp_path / "report.json", tmp_path / "figure.png"
    figure = ["--figure", str(drawn)] if name in DRAWN else []
    main(STUDIES, [name, "--quick", "--seeds", "1", "--only", "CNN", "--json", str(report), *figure])
    rows = json.loads(report.read_text())["rows"]
    assert rows and all(row["study"] == name for row in rows)
    assert [row for row in rows if row.get("failure")] == []
    assert any(row.get("summary") for row in rows)
    assert any("published" in row for row in rows) == (name in ("m_steps", "table", "unet"))
    assert name not in DRAWN or drawn.stat().st_size > 1000
