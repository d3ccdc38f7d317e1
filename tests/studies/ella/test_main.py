from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.command import main
from studies.ella.__main__ import STUDIES

ONLY = {
    "cifar": ["plain", "temperature scaling", "ELLA, mild augmentation", "last layer, KFAC"],
    "corruption": ["ELLA"],
    "rejection": ["plain", "ELLA"],
    "seconds": ["ELLA"],
}


@pytest.mark.filterwarnings("ignore::lapwing.ground.errors.ConvergenceWarning")
@pytest.mark.parametrize("name", STUDIES)
def test_each_study_runs_and_draws(name: str, tmp_path: Path, capsys) -> None:
    pytest.importorskip("matplotlib")
    report, picture = tmp_path / "report.json", tmp_path / "below" / "picture.png"
    only = ["--only", *ONLY[name]] if name in ONLY else []
    main(STUDIES, [name, "--quick", "--seeds", "1", "--json", str(report), "--figure", str(picture), *only])
    found = json.loads(report.read_text())
    rows = [row for row in found["rows"] if not row.get("summary")]
    assert set(found) == {"commit", "command", "machine", "rows"} and rows
    assert all(row["study"] == name for row in found["rows"])
    assert [row["failure"] for row in rows if row.get("failure") and "better than chance" not in row["failure"]] == []
    assert picture.exists() == (name not in ("cifar", "seconds"))
    assert capsys.readouterr().out.count("\n") > len(rows)
