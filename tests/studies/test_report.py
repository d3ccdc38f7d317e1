from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from studies.report import Row, attempt, collect, figure, line, shown


def test_rows_survive_an_interruption(tmp_path: Path) -> None:
    def rows() -> Iterator[Row]:
        yield {"name": "one", "seconds": 1.0}
        raise KeyboardInterrupt

    path = tmp_path / "below" / "report.json"
    with pytest.raises(KeyboardInterrupt):
        collect(rows(), path)
    report = json.loads(path.read_text())
    assert set(report) == {"commit", "command", "machine", "rows"}
    assert report["rows"] == [{"name": "one", "seconds": 1.0}]


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


def test_a_failure_is_its_first_line() -> None:
    def fail() -> None:
        raise ValueError("wrong shape\nand a story")

    assert attempt(fail) == (None, "ValueError: wrong shape")
    assert attempt(lambda: 3) == (3, "")


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
    assert line(row) == "a 1, b 0.1235, h x" and line(row, ("a", "h")) == "b 0.1235"


def test_rows_are_shown_as_they_come(capsys: pytest.CaptureFixture[str]) -> None:
    rows = shown(iter([{"a": 1}, {"a": 2}]))
    assert next(rows) == {"a": 1} and capsys.readouterr().out == "a 1\n"
