from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.command import main
from studies.sampled.__main__ import STUDIES


@pytest.mark.filterwarnings("ignore::lapwing.ground.errors.ConvergenceWarning")
@pytest.mark.parametrize(
    ("name", "only"),
    [
        ("toy", []),
        ("invariance", ["perceptron", "layerwise"]),
        ("table", ["CNN", "KFAC", "mode", "lower bound"]),
        ("fidelity", []),
        ("cifar", ["ELBO", "network", "KFAC"]),
    ],
)
def test_each_study_runs_and_says_what_its_seeds_mean(name: str, only: list[str], tmp_path: Path, capsys) -> None:
    report = tmp_path / "report.json"
    seeds = range(2 if name == "fidelity" else 1)
    options = ["--seeds", str(len(seeds)), "--kept", str(tmp_path / "kept"), "--only", *only]
    main(STUDIES, [name, "--quick", "--json", str(report), *options])
    found = json.loads(report.read_text())
    rows = [row for row in found["rows"] if not row.get("summary")]
    means = [row for row in found["rows"] if row.get("summary")]
    assert set(found) == {"commit", "command", "machine", "rows"} and rows and means
    assert all(row["study"] == name for row in found["rows"])
    allowed = "DataError" if name == "cifar" else "no failure"
    assert [row["failure"] for row in rows if row.get("failure") and allowed not in row["failure"]] == []
    assert name == "cifar" or {row["seed"] for row in rows} == set(seeds)
    assert any(key.endswith("_stderr") for row in means for key in row) == (len(seeds) > 1)
    assert capsys.readouterr().out.count("\n") > len(rows)
