"""Seconds and peak memory of a call."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar, final

import torch

T = TypeVar("T")

MIB = 2**20
_RESET = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


@final
@dataclass(frozen=True)
class Measured(Generic[T]):
    """What a call returned, and what it cost.

    Args:
        value: What it returned.
        seconds: Wall-clock seconds.
        peak_mib: Most memory at any moment of the call, above what was held when it began, MiB: on a GPU the bytes
            torch allocated, on Linux the resident set of the process, whose high-water mark the kernel keeps.
            ``None`` where neither can be read.
    """

    value: T
    seconds: float
    peak_mib: float | None


def measured(call: Callable[[], T], device: torch.device) -> Measured[T]:
    """The result of a call with its seconds and peak memory.

    Free memory is first given back to the system, so that reusing it counts as use.

    Args:
        call: What to run, without arguments.
        device: Where it computes.

    Example:
        >>> cost = measured(lambda: torch.ones(2**22).sum(), torch.device("cpu"))
        >>> float(cost.value), cost.seconds > 0
        (4194304.0, True)
    """
    base = _reset(device)
    start = time.perf_counter()
    value = call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - start
    peak = _peak(device)
    return Measured(value, seconds, None if base is None or peak is None else max(peak - base, 0.0))


def _reset(device: torch.device) -> float | None:
    """Start a new high-water mark; MiB held now, or ``None`` where there is no such mark."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device) / MIB
    if device.type != "cpu" or not _RESET.exists():
        return None
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone has it
    if trim is not None:
        trim(0)
    try:
        _RESET.write_text("5")
    except OSError:  # a sandbox may forbid it; then the peak is unknown
        return None
    return _resident("VmRSS:")


def _peak(device: torch.device) -> float | None:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / MIB
    return _resident("VmHWM:") if _STATUS.exists() else None


def _resident(field: str) -> float:
    words = _STATUS.read_text(encoding="ascii").split()
    return int(words[words.index(field) + 1]) / 1024
