from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.command import main
from studies.adapters import METHODS, STUDY


@pytest.mark.filterwarnings("ignore")
def test_every_method_has_a_row_and_a_mean(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    main({"adapters": STUDY}, ["--quick", "--seeds", "1", "--only", "last layer, evidence", "--json", str(report)])
    found = json.loads(report.read_text())["rows"]
    rows = [row for row in found if not row.get("summary")]
    assert [row["method"] for row in rows] == ["plain network", "temperature scaling", "last layer, evidence"]
    assert rows[1]["difference"] == 0.0 and all(row["targets"] == 736 for row in rows)
    assert "last layer, evidence" in METHODS and all(0.0 < row["accuracy"] < 1.0 for row in rows)
