"""What a call costs, and what it may."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from lapwing.comparison import cost
from lapwing.ground.errors import TooLargeError, TooSlowError

CPU = torch.device("cpu")


def test_seconds_are_those_of_the_call() -> None:
    slow, fast = cost.measured(lambda: time.sleep(0.05), CPU), cost.measured(lambda: None, CPU)
    assert slow.seconds >= 0.05 > fast.seconds


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel keeps the high-water mark on Linux")
def test_peak_counts_what_was_freed_again_and_forgets_what_came_before() -> None:
    def passing(mib: int) -> None:
        torch.ones(mib * 2**18).sum()

    large, small = cost.measured(lambda: passing(64), CPU), cost.measured(lambda: passing(1), CPU)
    assert large.peak_mib is not None
    assert small.peak_mib is not None
    assert 60 < large.peak_mib < 80
    assert small.peak_mib < 16


def test_peak_is_unknown_where_nothing_keeps_it(tmp_path: Path) -> None:
    assert cost.measured(lambda: 3, CPU, tmp_path).peak_mib is None


def test_peak_is_unknown_where_the_mark_cannot_be_reset(tmp_path: Path) -> None:
    (tmp_path / "clear_refs").mkdir()  # a folder cannot be written to
    found = cost.measured(lambda: 3, CPU, tmp_path)
    assert (found.value, found.peak_mib) == (3, None)


@pytest.mark.gpu
def test_peak_on_a_gpu_is_what_torch_allocated() -> None:
    device = torch.device("cuda")
    found = cost.measured(lambda: torch.ones(2**20, device=device).sum(), device)
    assert found.peak_mib is not None
    assert 4 <= found.peak_mib < 5


def test_errors_pass_through() -> None:
    with pytest.raises(ZeroDivisionError):
        cost.measured(lambda: 1 // 0, CPU)


LIMITED = cost.Limits(seconds=0.15)


def endless() -> None:
    while True:
        torch.ones(4).sum()


def swallowing() -> None:
    while True:
        try:
            endless()
        except Exception:
            continue


@pytest.mark.parametrize("call", [endless, swallowing, lambda: time.sleep(20)], ids=["works", "swallows", "sleeps"])
def test_a_call_is_ended_after_its_seconds_whatever_it_does(call: Callable[[], None]) -> None:
    start = time.perf_counter()
    with pytest.raises(TooSlowError, match=r"at most 0\.15 s"):
        cost.measured(call, limits=LIMITED)
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("traced", [False, True], ids=["plain", "traced"])
def test_a_call_in_another_thread_is_ended_too(traced: bool) -> None:
    """Also under a debugger or where lines are counted."""
    watched = partial(sys.settrace, unmoved) if traced else None
    with ThreadPoolExecutor(1, initializer=watched) as pool:
        ended = pool.submit(lambda: cost.measured(endless, limits=LIMITED))
        with pytest.raises(TooSlowError):
            ended.result()
        assert pool.submit(lambda: cost.measured(lambda: 3, limits=LIMITED)).result().value == 3


def unmoved(frame: FrameType, event: str, _: object) -> None:
    """Traces, and looks at nothing."""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel keeps the high-water mark on Linux")
def test_a_call_that_takes_more_memory_is_refused_also_where_it_has_given_it_back() -> None:
    limits = cost.Limits(bytes=32 * cost.MIB)
    with pytest.raises(TooLargeError, match="at most 32 MiB"):
        cost.measured(lambda: torch.ones(64 * 2**18).sum(), limits=limits)
    assert cost.measured(lambda: torch.ones(2**18).sum(), limits=limits).value == 2**18


def test_seconds_that_were_spent_count() -> None:
    spent = cost.Limits(seconds=10.0).less(12.0)
    with pytest.raises(TooSlowError, match="at most 10 s"):
        cost.measured(lambda: 3, limits=spent)


def test_signals_go_to_who_had_them_before() -> None:
    seen = list[int]()
    before = signal.signal(signal.SIGALRM, lambda number, _: seen.append(number))
    try:
        cost.measured(lambda: signal.raise_signal(signal.SIGALRM), limits=cost.Limits(seconds=60.0))
        assert seen == [signal.SIGALRM]
        signal.raise_signal(signal.SIGALRM)
        assert len(seen) == 2
    finally:
        signal.signal(signal.SIGALRM, before)


def test_errors_of_a_limited_call_pass_through() -> None:
    with pytest.raises(ZeroDivisionError):
        cost.measured(lambda: 1 // 0, limits=cost.Limits(seconds=60.0))


@pytest.mark.parametrize("by_signal", [True, False], ids=["signal", "exception"])
def test_what_comes_while_a_call_ends_leaves_nothing_locked(by_signal: bool) -> None:
    """The last word of the watching thread may come at any step of the ending: it is sent at each in turn."""
    for step in range(1, 100):
        watch = cost.Watch(cost.Limits(seconds=60.0), cost.Meter(CPU, cost.PROCESS), None)
        watch.error = cost.Limits(seconds=60.0).too_slow
        watch.by_signal = by_signal
        steps = interrupted(watch, step)
        again = threading.Thread(target=watch.end, daemon=True)
        again.start()
        again.join(10)
        assert not again.is_alive(), f"left locked by what came at step {step}"
        if steps < step:
            return
    pytest.fail("the ending has no end")


def interrupted(watch: cost.Watch, step: int) -> int:
    """The number of steps of an ending into which a last word comes, unless it ended before."""
    steps = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal steps
        frame.f_trace_opcodes = True
        if event == "opcode":
            steps += 1
            if steps == step:
                watch.told(signal.SIGALRM, frame)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        watch.end()
    except cost.Stopped:
        pass
    finally:
        sys.settrace(before)
    return steps
