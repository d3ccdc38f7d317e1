"""What a piece of work costs: seconds, and the memory of the process at its peak."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """What a piece of work returns, and its seconds."""
    start = time.perf_counter()
    return work(), time.perf_counter() - start


def reset_peak() -> None:
    """Count the peak from here, where the system can."""
    if sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5")


def peak_gib() -> float:
    """Most memory the process held since it began or since ``reset_peak``, network and data included."""
    if sys.platform == "linux":
        status = Path("/proc/self/status").read_text().split()
        return int(status[status.index("VmHWM:") + 1]) / 2**20
    unit = 1 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
