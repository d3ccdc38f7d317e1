from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.command import main
from studies.full.__main__ import STUDIES

DRAWN = ("spectrum", "cost", "digits")


@pytest.mark.filterwarnings("ignore::lapwing.ground.errors.ConvergenceWarning")
@pytest.mark.parametrize("name", ["spectrum", "cost", "quadrature", "sine", "digits", "preconditioners"])
def test_each_study_runs_goes_on_and_draws(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report, again, drawn = tmp_path / "report.json", tmp_path / "again.json", tmp_path / "figure.png"
    figure = ["--figure", str(drawn)] if name in DRAWN else []
    main(STUDIES, [name, "--quick", "--seeds", "1", "--json", str(report), *figure])
    rows = json.loads(report.read_text())["rows"]
    assert rows and all(row["study"] == name for row in rows if "summary" not in row)
    assert [row for row in rows if row.get("failure")] == []
    assert name not in DRAWN or drawn.stat().st_size > 1000
    if name == "cost":
        main(STUDIES, [name, "--quick", "--resume", str(report), "--json", str(again)])
        assert without_origin(json.loads(again.read_text())["rows"]) == without_origin(rows)


def without_origin(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Rows without the report they were taken from."""
    return [{k: v for k, v in row.items() if k != "source"} for row in rows]
