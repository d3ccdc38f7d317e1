from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from lapwing import cli
from lapwing.comparison import Comparison, Row
from lapwing.demo import tour
from lapwing.demo.questions import QUESTIONS, Answer
from lapwing.demo.tour import Demo


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    """What the program sets for its process is put back."""
    before = logging.getLogger("lapwing").level
    yield
    logging.getLogger("lapwing").setLevel(before)


def test_both_tables_are_printed_and_where_the_report_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(out: Path, **options: object) -> Demo:
        assert options == {"seeds": 2, "quick": True, "progress": False}  # nobody looks at captured output
        digits, gap = (Comparison((Row(name, "", ({"nll": 0.5},)),)) for name in ("digits row", "gap row"))
        answer = Answer(QUESTIONS[0], 0.5, "plain network", -0.5, 0.125)
        return Demo(digits, gap, (answer,), out / "results.json", out / "report.html", 61.4)

    monkeypatch.setattr(tour, "run", run)
    cli.main(["demo", "--seeds", "2", "--quick", "--out", "there"])
    out = capsys.readouterr().out
    assert out.index("digits row") < out.index("gap row") < out.index("−0.50 ± 0.12  better")
    assert max(map(len, out.splitlines())) <= 120
    assert out.endswith("there/results.json, there/report.html: 61 seconds\n")


def test_a_mistake_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["demo", "--seeds", "0"])
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert said.startswith("lapwing: Expected at least one seed") and said.count("\n") == 1


def test_an_interrupt_is_no_traceback(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object, **__: object) -> Demo:
        raise KeyboardInterrupt

    monkeypatch.setattr(tour, "run", run)
    with pytest.raises(SystemExit) as end:
        cli.main(["demo"])
    assert (end.value.code, capsys.readouterr().err) == (130, "lapwing: interrupted\n")
