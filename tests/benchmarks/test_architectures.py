"""The line of a network: its steps in seconds and passes, what failed, what was said; a terminal that reads bars."""

from __future__ import annotations

import json

import pytest

from benchmarks import architectures, architectures_sides
from benchmarks.architectures_sides import Terminal
from benchmarks.costs import PAGE
from benchmarks.report import Row


def step(name: str, seconds: float | None, **more: float | str) -> Row:
    return {"network": "a", "posterior": "kfac", "step": name, "seconds": seconds, "peak_mib": 10.0, **more}


def test_a_line_holds_seconds_passes_failures_and_the_longest_forecast() -> None:
    rows = [
        step("pass", 2.0),
        step("fit", 8.0, passes=4.0, silence=1.5, forecast=6.0, came=7.0),
        step("tune", None, note="MemoryError: no", silence=0.5),
        step("predict 64", 1.0, passes=0.5, forecast=60.0, came=50.0),
    ]
    line = architectures.line_of(rows)
    assert line["fit"] == "8 (4)" and line["predict 64"] == "1 (0.5)" and line["tune"] == "MemoryError: no"
    assert line["forecast"] == "60, 50" and line["silence"] == 1.5 and line["peak_mib"] == 10.0


def test_the_page_has_a_place_for_every_network() -> None:
    rows = [step("fit", 8.0, passes=4.0) | {"network": name} for name in architectures_sides.NETWORKS]
    page = architectures.page(rows)
    assert all(f"| {name} | kfac | 8 (4) |" in page for name in architectures_sides.NETWORKS)


def test_the_page_has_the_table_of_the_report() -> None:
    report = json.loads((PAGE.parents[1] / "benchmarks" / "results" / "architectures.json").read_text(encoding="utf-8"))
    assert PAGE.read_text(encoding="utf-8") == architectures.page(report["rows"])


def test_a_bar_is_held_against_what_came(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 13.0, 21.0, 30.0])
    monkeypatch.setattr(architectures_sides.time, "perf_counter", lambda: next(clock))
    terminal = Terminal()
    for words in ("\rfit: 1 steps [00:02]", "\rfit:  20%|##  | 2/10 batches [00:04<00:16]", "fit: 9/10 [00:15<00:01]"):
        terminal.write(words)
    (told,) = terminal.forecasts.values()
    assert (told.left, told.came) == (16.0, 8.0) and terminal.times == [10.0, 13.0, 21.0]


def test_of_bars_of_one_name_that_of_which_most_was_told_counts() -> None:
    terminal = Terminal()
    for words in ("[00:04<00:16]", "[00:15<00:01]", "[00:03<00:20]", "[00:21<00:02]", "[00:01<00:09]"):
        terminal.write(f"fit: 1/10 batches {words}")
    (told,) = terminal.forecasts.values()
    assert told.left == 20.0 and told.taken == 21.0
