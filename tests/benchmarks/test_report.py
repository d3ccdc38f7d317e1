from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.report import ROOT, Row, attempt, beside, collect, command, figure, line, shown, tried, write_json


def test_rows_survive_an_interruption(tmp_path: Path) -> None:
    def rows() -> Iterator[Row]:
        yield {"name": "one", "seconds": 1.0}
        raise KeyboardInterrupt

    path = tmp_path / "below" / "report.json"
    with pytest.raises(KeyboardInterrupt):
        collect(rows(), path)
    found = json.loads(path.read_text())
    assert set(found) == {"commit", "command", "machine", "rows"}
    assert found["rows"] == [{"name": "one", "seconds": 1.0}]


def test_a_report_written_now_and_then_has_all_rows_in_the_end(tmp_path: Path) -> None:
    seen: list[int] = []

    def rows() -> Iterator[Row]:
        for number in range(3):
            yield {"number": number}
            seen.append(len(json.loads((tmp_path / "report.json").read_text())["rows"]))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(rows(), tmp_path / "report.json", pause=100.0)
    assert seen == [1, 1, 1]
    assert len(json.loads((tmp_path / "report.json").read_text())["rows"]) == 3


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    row = {"a": float("nan"), "b": [1.0, float("inf")], "c": {"d": -float("inf"), "e": 2}, "f": "nan"}
    write_json(tmp_path / "report.json", [row])
    (found,) = json.loads((tmp_path / "report.json").read_text())["rows"]
    assert found == {"a": None, "b": [1.0, None], "c": {"d": None, "e": 2}, "f": "nan"}


def test_a_failure_is_its_first_line() -> None:
    def fail() -> None:
        raise ValueError("wrong shape\nand a story")

    assert attempt(fail) == (None, "ValueError: wrong shape")
    assert attempt(lambda: 3) == (3, "")


def test_what_is_tried_says_its_seconds_and_why_it_failed() -> None:
    clock = iter([1.0, 3.5, 4.0, 4.25])
    assert tried(lambda: 3, "waited", lambda: next(clock)) == (3, {"waited": 2.5, "failure": ""})
    found, row = tried(lambda: 1 / 0, "waited", lambda: next(clock))
    assert found is None and row["waited"] == 0.25 and row["failure"].startswith("ZeroDivisionError")


def test_a_failure_does_not_hide_an_interruption() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attempt(stop)


def test_a_figure_has_its_panels() -> None:
    pytest.importorskip("matplotlib")
    assert len(figure(6, 3, 2).axes) == 2


def test_a_row_is_one_line_without_lists_and_what_is_hidden() -> None:
    row = {"study": "s", "a": 1, "b": 0.123456, "c": [1], "d": {"e": 1}, "f": "", "g": None, "h": "x"}
    assert line(row) == "a 1, b 0.1235, h x"


def test_rows_are_shown_as_they_come(capsys: pytest.CaptureFixture[str]) -> None:
    rows = shown(iter([{"a": 1}, {"a": 2}]))
    assert next(rows) == {"a": 1} and capsys.readouterr().out == "a 1\n"


@pytest.mark.parametrize(("ours", "peer"), [(None, 1.0), (1.0, None), (None, None), (1.0, 0.0)])
def test_a_side_without_a_number_has_no_ratio(ours: float | None, peer: float | None) -> None:
    assert beside("w", "seconds", ours, peer, "p", "why")["ratio"] is None


def test_the_command_of_a_report_names_a_module_and_no_folder() -> None:
    words = [
        str(ROOT / "studies/gp/__main__.py"),
        "uci",
        "--data",
        "/a/data",
        "--json",
        "/b/uci.json",
        "--seeds",
        "5",
    ]
    assert command(words) == "python -m studies.gp uci --data DIR --json uci.json --seeds 5"
    assert command(["/elsewhere/bin/pytest", "-x"]) == "python -m pytest -x"


def test_the_report_is_one_object_with_commit_machine_and_rows(tmp_path: Path) -> None:
    path = tmp_path / "below" / "report.json"
    refused = beside("w", "peak_mib", None, 2.0, "p", "ours: refused")
    write_json(path, [beside("w", "seconds", 1.0, 2.0, "p"), refused])
    found = json.loads(path.read_text())
    assert set(found) == {"commit", "command", "machine", "rows"}
    assert found["machine"]["cores"] >= 1 and found["machine"]["memory_gib"] > 0
    assert found["rows"][0] == {
        "work": "w",
        "quantity": "seconds",
        "ours": 1.0,
        "peer": 2.0,
        "peer_name": "p",
        "ratio": 0.5,
    }
    assert found["rows"][1]["note"] == "ours: refused" and found["rows"][1]["ratio"] is None
    assert [child.name for child in path.parent.iterdir()] == ["report.json"]
