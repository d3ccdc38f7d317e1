from __future__ import annotations

import json
from pathlib import Path

import pytest

from studies import sine
from studies.full_laplace.__main__ import main


def test_an_unknown_study_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nothing", "--json", "x.json"])
    assert "spectrum" in capsys.readouterr().err


def test_the_sine_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(sine, "main", seen.append)
    main(["sine", "--json", "a.json", "--figure", "b.png", "--quick"])
    assert seen == [["--json", "a.json", "--figure", "b.png", "--quick"]]


@pytest.mark.parametrize("name", ["spectrum", "quadrature", "preconditioners", "mnist"])
def test_each_study_runs_on_the_digits_and_draws(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report, drawn = tmp_path / "report.json", tmp_path / "figure.png"
    main([name, "--quick", "--json", str(report), "--figure", str(drawn)])
    rows = json.loads(report.read_text())["rows"]
    assert rows and all(row["study"] == name and row["data"] == "digits" for row in rows)
    assert [row["failure"] for row in rows if row["failure"]] == []
    assert drawn.stat().st_size > 1000
