"""What the benchmarks measure is right, and whatever happens to a side ends up in its report."""

from __future__ import annotations

import io
import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.measure import Step, rows_of, run_isolated
from benchmarks.meter import Meter

MIB = 2**20


def allocate(meter: Meter, *, mib: int) -> None:
    meter.ready()
    meter.step("allocate", lambda: len(bytearray(b"x" * (mib * MIB // 2))))
    meter.step("nothing", lambda: None)


def sleep_in_rounds(meter: Meter) -> None:
    naps = iter([0.01, 0.2, 0.05])
    meter.ready()
    meter.rounds(lambda: meter.step("nap", lambda: time.sleep(next(naps))).value is None, most=3)


def fail_then_go_on(meter: Meter, *, lines: str) -> None:
    def refuse() -> None:
        raise ValueError(lines)

    meter.ready()
    assert meter.step("refuse", refuse, label="@1").value is None
    assert meter.step("go on", lambda: 3).value == 3


def too_much(meter: Meter) -> None:
    meter.ready()
    assert meter.step("too much", lambda: bytearray(2**31)).out_of_memory
    assert not meter.step("enough", lambda: bytearray(2**20)).out_of_memory


def too_long(meter: Meter) -> None:
    meter.ready()
    meter.step("quick", lambda: None)
    meter.step("too long", lambda: time.sleep(60), label="@2")


def killed(meter: Meter) -> None:
    meter.ready()
    meter.step("killed", lambda: os.kill(os.getpid(), signal.SIGKILL))


def broken(meter: Meter) -> None:
    raise RuntimeError("no data")


def chatty(meter: Meter) -> None:
    os.write(2, b"x" * 200_000)
    os.write(1, b"x" * 200_000)
    meter.step("talk", lambda: None)


def test_peak_is_counted_above_the_baseline_and_again_for_every_step() -> None:
    allocating, nothing = run_isolated(allocate, mib=128)
    assert allocating.peak_mib == pytest.approx(128, abs=8)
    assert nothing.peak_mib is not None and nothing.peak_mib < 8


def test_rounds_of_a_step_become_their_median() -> None:
    (nap,) = run_isolated(sleep_in_rounds)
    assert nap.seconds == pytest.approx(0.05, abs=0.03)


def times_and_tells(meter: Meter) -> None:
    meter.step("nap", lambda: time.sleep(0.2))
    for _ in range(2):
        meter.step("nap", lambda: time.sleep(0.02), times=4)
    meter.tell("nap", naps=9)


def test_the_rounds_with_the_most_work_count_and_facts_are_told() -> None:
    (nap,) = run_isolated(times_and_tells)
    assert nap.seconds == pytest.approx(0.02, abs=0.02) and nap.facts == {"naps": 9}


def test_rounds_stop_at_the_budget() -> None:
    calls: list[int] = []

    def once() -> bool:
        calls.append(1)
        time.sleep(0.05)
        return True

    with Path(os.devnull).open("w") as sink:
        Meter(sink).rounds(once, budget=0.16, most=100)
    assert 2 <= len(calls) <= 3


def test_a_failure_is_recorded_by_its_first_line_and_the_work_goes_on() -> None:
    refused, after = run_isolated(fail_then_go_on, lines="wrong shape\nand a long story")
    assert refused == Step("refuse", None, None, "@1", "ValueError: wrong shape")
    assert after.name == "go on" and after.seconds is not None


def test_the_memory_limit_stops_a_step_and_not_the_process() -> None:
    stopped, after = run_isolated(too_much, limit_gib=1.0)
    assert "MemoryError" in stopped.note and stopped.seconds is None
    assert after.name == "enough" and after.seconds is not None


def test_a_step_that_takes_too_long_is_stopped() -> None:
    start = time.perf_counter()
    quick, late = run_isolated(too_long, timeout=3.0)
    assert time.perf_counter() - start < 20
    assert quick.seconds is not None
    assert late == Step("too long", None, None, "@2", "stopped after 3 s")


def test_a_process_that_dies_is_recorded() -> None:
    (step,) = run_isolated(killed)
    assert step.name == "killed" and "SIGKILL" in step.note


def test_work_that_raises_outside_a_step_is_recorded_with_its_last_words() -> None:
    (step,) = run_isolated(broken)
    assert step.seconds is None and "RuntimeError: no data" in step.note


def test_what_the_work_prints_neither_blocks_it_nor_reaches_the_report() -> None:
    (step,) = run_isolated(chatty, timeout=30)
    assert step.name == "talk" and step.seconds is not None


def test_rows_hold_both_quantities_and_the_notes_of_both_sides() -> None:
    ours, peer = Step("fit", 1.0, 8.0), Step("fit", 4.0, 2.0, "@64", "@256: no memory")
    seconds, memory = rows_of("net/fit", ours, peer, "p 1")
    assert (seconds["quantity"], seconds["ratio"], seconds["peer_name"]) == ("seconds", 0.25, "p 1 @64")
    assert (memory["quantity"], memory["ratio"], memory["note"]) == ("peak_mib", 4.0, "peer: @256: no memory")


def test_what_inner_steps_take_to_begin_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    now, reports = [0.0], io.StringIO()
    monkeypatch.setattr("benchmarks.meter.time", SimpleNamespace(perf_counter=lambda: now[0]))

    def passes(seconds: float) -> None:
        now[0] += seconds

    meter = Meter(reports)
    monkeypatch.setattr(meter, "_reset", lambda: passes(5.0))
    meter.step("outer", lambda: [passes(2.0), meter.step("inner", lambda: passes(1.0))])
    ended = [event for event in map(json.loads, reports.getvalue().splitlines()) if "seconds" in event]
    assert {event["name"]: event["seconds"] for event in ended} == {"inner": 1.0, "outer": 3.0}
