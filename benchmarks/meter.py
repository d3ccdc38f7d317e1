"""Measure the steps of a piece of work from inside its own process: wall-clock seconds and peak memory.

``python -m benchmarks.meter FD ORDER`` is what ``benchmarks.measure.run_isolated`` starts.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TextIO, TypeVar

from benchmarks.report import reason

T = TypeVar("T")
MIB = 2**20
PR_SET_PDEATHSIG = 1
MEMORY_WORDS = ("allocate memory", "out of memory", "not enough memory", "bad_alloc")


@dataclass(frozen=True)
class Attempt(Generic[T]):
    """What a step returned, or why it did not."""

    value: T | None
    failure: str = ""
    out_of_memory: bool = False


class Meter:
    """Times steps and reports each to the parent process as one line of JSON.

    Args:
        reports: Where the lines go.
        device: ``"cpu"`` measures resident memory, ``"cuda"`` what torch allocated on the accelerator.
    """

    def __init__(self, reports: TextIO, *, device: str = "cpu") -> None:
        self._reports = reports
        self._cuda = device.startswith("cuda")
        self._baseline, self._own = 0.0, 0.0

    def ready(self) -> None:
        """Network and data are loaded: memory is counted from here."""
        self._reset()
        self._baseline = self._memory(peak=False)

    def step(self, name: str, work: Callable[[], T], *, label: str = "", times: int = 1) -> Attempt[T]:
        """Do ``work``, so many times, and report its cost; an exception is reported too and goes no further.

        What steps inside it take to clear the memory before they begin is not counted.
        """
        self._report({"name": name, "label": label})
        begun = time.perf_counter()
        self._reset()
        start = time.perf_counter()
        self._own += start - begun
        attempt: Attempt[T]
        own = self._own
        try:
            for _ in range(times - 1):
                work()
            attempt = Attempt(work())
        except Exception as error:  # that it failed, and how, is a measurement
            attempt = Attempt(None, reason(error), _is_memory(error))
        self._synchronise()
        cost = {
            "seconds": (time.perf_counter() - start - (self._own - own)) / times,
            "times": times,
            "peak_mib": max(self._memory(peak=True) - self._baseline, 0.0),
            "failure": attempt.failure,
        }
        self._report({"name": name, "label": label} | cost)
        return attempt

    def tell(self, name: str, **facts: Any) -> None:
        """Report what is no cost of a step, such as how good its result is."""
        self._report({"name": name, "facts": facts})

    def rounds(self, once: Callable[[], bool], *, budget: float = 8.0, most: int = 5) -> None:
        """Call ``once`` again while it says the steps ran, up to ``most`` times and about ``budget`` seconds.

        Each round starts from nothing, so that what one round computed and kept does not speed up the next.
        """
        start = time.perf_counter()
        for done in range(1, most + 1):
            if not once():
                return
            spent = time.perf_counter() - start
            if spent * (done + 1) / done > budget:
                return

    def _report(self, event: dict[str, Any]) -> None:
        self._reports.write(json.dumps(event) + "\n")
        self._reports.flush()

    def _synchronise(self) -> None:
        if self._cuda:
            import torch

            torch.cuda.synchronize()

    def _reset(self) -> None:
        gc.collect()
        if self._cuda:
            import torch

            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        elif sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")

    def _memory(self, *, peak: bool) -> float:
        """MiB now, or the most since the last reset (off Linux: since the process began)."""
        if self._cuda:
            import torch

            return (torch.cuda.max_memory_allocated() if peak else torch.cuda.memory_allocated()) / MIB
        if sys.platform == "linux":
            field = "VmHWM:" if peak else "VmRSS:"
            status = Path("/proc/self/status").read_text().split()
            return int(status[status.index(field) + 1]) / 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MIB


def _is_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or any(word in str(error).lower() for word in MEMORY_WORDS)


def main() -> None:
    """Run the work named in the order, on the CPU under its memory limit; end when the parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    order = json.loads(sys.argv[2])
    device = order["options"].get("device", "cpu")
    if device == "cpu":
        limit = int(order["limit_gib"] * 2**30)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    module, _, name = order["work"].partition(":")
    work = getattr(importlib.import_module(module), name)
    with os.fdopen(int(sys.argv[1]), "w", encoding="utf-8") as reports:
        work(Meter(reports, device=device), **order["options"])


if __name__ == "__main__":
    main()
