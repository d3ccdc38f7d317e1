from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.command import main
from studies.ella.__main__ import STUDIES


@pytest.mark.filterwarnings("ignore::lapwing.ground.errors.ConvergenceWarning")
@pytest.mark.parametrize("name", ["ablation", "stopping", "rank", "shifted"])
def test_each_study_runs_and_draws(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report, drawn = tmp_path / "report.json", tmp_path / "below" / "figure.png"
    only = ["--only", "ELLA", "last layer"] if name == "shifted" else []
    main(STUDIES, [name, "--quick", "--seeds", "1", *only, "--json", str(report), "--figure", str(drawn)])
    rows = json.loads(report.read_text())["rows"]
    assert rows and all(row["study"] == name for row in rows if "summary" not in row)
    failures = [row["failure"] for row in rows if row.get("failure")]
    assert [failure for failure in failures if "better than chance" not in failure] == []
    assert drawn.exists() == (name != "rank")
