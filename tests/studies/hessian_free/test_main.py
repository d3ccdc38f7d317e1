from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.command import main
from studies.hessian_free.__main__ import STUDIES

DRAWN = ("intervals", "sparsification", "cost")
ONLY = ("Quadratic-Uniform", "full Hessian", "probed", "pre-trained, mean")
"""One set of data; of the methods of the table the default, what it is held against, and one that is fitted anew."""


@pytest.mark.filterwarnings("ignore::lapwing.ground.errors.ConvergenceWarning")
@pytest.mark.parametrize("name", ["table", "cost", "digits", "intervals", "sparsification"])
def test_each_study_runs_and_says_what_its_seeds_mean(name: str, tmp_path: Path, capsys) -> None:
    pytest.importorskip("matplotlib")
    report, drawn = tmp_path / "report.json", tmp_path / "figure.png"
    seeds = range(2 if name == "table" else 1)
    options = ["--seeds", str(len(seeds)), *(["--figure", str(drawn)] if name in DRAWN else [])]
    main(STUDIES, [name, "--quick", "--json", str(report), "--only", *ONLY, *options])
    found = json.loads(report.read_text())
    rows = [row for row in found["rows"] if "seed" in row]
    means = [row for row in found["rows"] if row.get("summary")]
    assert set(found) == {"commit", "command", "machine", "rows"} and rows and means
    assert all(row["study"] == name for row in found["rows"])
    assert [row["failure"] for row in rows if row.get("failure")] == []
    assert {row["seed"] for row in rows} == set(seeds)
    assert any(key.endswith("_stderr") for row in means for key in row) == (len(seeds) > 1)
    assert any("verdict" in row for row in found["rows"]) == (name in ("table", "cost", "digits"))
    assert name not in DRAWN or drawn.stat().st_size > 1000
    assert capsys.readouterr().out.count("\n") > len(rows)
