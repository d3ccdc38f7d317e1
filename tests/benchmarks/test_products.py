"""What was measured becomes rows that say what was chosen, against what, and whether the limits hold."""

from __future__ import annotations

import io
import json

import pytest

from benchmarks.measure import Step
from benchmarks.products import limited, report
from benchmarks.report import beside

STEPS = (
    Step("peer memory", 1.0, 500.0),
    Step("prepare", 3.0, 900.0, "traced"),
    Step("memory", 0.5, 1000.0, "800 MiB kept"),
    Step("difference", 0.0, 0.0, "1e-07"),
    Step("gradient", 0.1, 1.0),
    Step("peer", 1.0, 1.0, "batches of 250"),
    Step("ours", 0.3, 1.0, "traced"),
    Step("explicit", 0.05, 1.0, "125 examples"),
    Step("autodiff", 0.9, 1.0, "1000 examples"),
)


def test_rows_say_what_was_chosen_and_what_would_have_been_best() -> None:
    rows = {row["quantity"]: row for row in report("lenet/1", 1, STEPS)}
    assert rows["seconds"]["ratio"] == pytest.approx(0.3) and "traced" in rows["seconds"]["note"]
    assert rows["peak_mib"]["ours"] == 1000.0 and rows["peak_mib"]["peer"] == 500.0
    assert (rows["gradients_a_column"]["ours"], rows["gradients_a_column"]["peer"]) == pytest.approx((3.0, 10.0))
    assert rows["seconds_explicit"]["ours"] == pytest.approx(0.4) and "scaled" in rows["seconds_explicit"]["note"]
    assert rows["chosen_over_best"]["ratio"] == 1.0 and rows["chosen_over_best"]["peer_name"] == "best: traced"
    assert rows["seconds_to_prepare"]["ours"] == 3.0


def test_columns_share_a_gradient() -> None:
    rows = {row["quantity"]: row for row in report("lenet/32", 32, STEPS)}
    assert rows["gradients_a_column"]["ours"] == pytest.approx(3.0 / 32)


def test_a_process_that_ended_early_says_why() -> None:
    (row,) = report("lenet/1", 1, [*STEPS[:5], Step("peer", None, None, "", "MemoryError: no room")])
    assert row["ratio"] is None and "no room" in row["note"]


def test_limits_say_whether_they_hold() -> None:
    assert limited(beside("lenet/1", "seconds", 0.6, 1.0, "")) == {"limit": 0.65, "holds": True}
    assert limited(beside("lenet/1", "seconds", 0.7, 1.0, "")) == {"limit": 0.65, "holds": False}
    assert limited(beside("lenet/32", "seconds", None, 1.0, "")) == {"limit": 0.45, "holds": False}
    assert limited(beside("mlp/32", "seconds", 0.9, 1.0, "")) == {}
    assert not limited(beside("mlp/32", "chosen_over_best", 1.2, 1.0, ""))["holds"]
    assert limited(beside("mlp/32", "peak_mib", 100.0, 1.0, "")) == {"limit": 2048, "holds": True}


def test_the_contestants_agree_and_every_step_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("curvlinops")
    from benchmarks import contest
    from benchmarks.meter import Meter

    monkeypatch.setattr(contest.torch, "set_num_threads", lambda threads: None)
    reports = io.StringIO()
    contest.work(Meter(reports), problem="mlp", columns=1, data=None, threads=1, device="cpu", quick=True)
    events = [json.loads(line) for line in reports.getvalue().splitlines()]
    done = [event for event in events if "seconds" in event]
    assert not [event["failure"] for event in done if event["failure"]]
    names = {event["name"] for event in done}
    assert {"peer memory", "prepare", "memory", "difference", "gradient", "peer", "ours", "autodiff"} <= names
    assert float(next(event["label"] for event in done if event["name"] == "difference")) < 1e-4


def test_every_problem_says_how_the_peer_is_fed() -> None:
    contest = pytest.importorskip("benchmarks.contest", exc_type=ImportError)
    assert all(set(sizes) == {1, 32} for sizes in contest.PEER_BATCHES.values())
