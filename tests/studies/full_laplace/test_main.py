from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.command import main
from studies.full_laplace.__main__ import STUDIES


@pytest.mark.parametrize("name", ["spectrum", "quadrature", "preconditioners", "mnist"])
def test_each_study_runs_on_the_digits_and_draws(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report, drawn = tmp_path / "report.json", tmp_path / "figure.png"
    main(STUDIES, [name, "--quick", "--json", str(report), "--figure", str(drawn)])
    rows = json.loads(report.read_text())["rows"]
    assert rows and all(row["study"] == name and row["data"] == "digits" for row in rows)
    assert [row["failure"] for row in rows if row["failure"]] == []
    assert drawn.stat().st_size > 1000
