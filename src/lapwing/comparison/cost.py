"""What a call costs, seconds and memory, and what it may cost: a call that takes more is ended from outside."""

from __future__ import annotations

import ctypes
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar, final

import torch

from lapwing.ground.errors import LapwingError, TooLargeError, TooSlowError

T = TypeVar("T")

MIB = 2**20

CPU = torch.device("cpu")

PROCESS = Path("/proc/self")
"""Where the kernel of Linux tells of this process and forgets what it had at most."""

LOOK = 0.05
"""Seconds between two looks at what a call has taken."""

AGAIN = 10.0
"""Seconds after which a call that was told to end, and went on, is told again."""


@final
@dataclass(frozen=True)
class Limits:
    """What a call may take.

    Args:
        seconds: Wall-clock seconds; ``None`` for any number.
        bytes: Memory above what was held when it began; ``None`` for any amount.
        spent: Of the seconds, those that were taken before it.

    Example:
        >>> Limits(seconds=60.0).less(45.0).left
        15.0
    """

    seconds: float | None = None
    bytes: int | None = None
    spent: float = 0.0

    @property
    def none(self) -> bool:
        """Whether anything is allowed."""
        return self.seconds is None and self.bytes is None

    @property
    def left(self) -> float | None:
        """Seconds that are left; ``None`` for any number."""
        return None if self.seconds is None else self.seconds - self.spent

    def less(self, seconds: float) -> Limits:
        """What is left after some seconds more."""
        return replace(self, spent=self.spent + seconds)

    @property
    def too_slow(self) -> TooSlowError:
        """The error of a call that took more seconds."""
        expected = f"a method that takes at most {self.seconds:g} s"
        return TooSlowError(expected, "one that takes more", "a larger budget_seconds=, or fewer data")

    def too_large(self, mib: float) -> TooLargeError:
        """The error of a call that took so much memory, which was more."""
        expected = f"a method that takes at most {(self.bytes or 0) / MIB:,.4g} MiB"
        hint = "a larger max_bytes=, smaller batches, or a smaller structure"
        return TooLargeError(expected, f"{mib:,.4g} MiB", hint)


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


NO_LIMITS = Limits()


def measured(
    call: Callable[[], T], device: torch.device = CPU, process: Path = PROCESS, limits: Limits = NO_LIMITS
) -> Measured[T]:
    """The result of a call with its seconds and peak memory.

    Free memory is first given back to the system, so that reusing it counts as use.

    Args:
        call: What to run, without arguments.
        device: Where it computes.
        process: What the kernel tells of the process.
        limits: What it may take.

    Raises:
        TooSlowError: If it took more seconds. It is ended between two steps of the interpreter: a call of PyTorch's
            that has begun is waited for.
        TooLargeError: If it took more memory, where that can be read.

    Example:
        >>> cost = measured(lambda: torch.ones(2**22).sum())
        >>> float(cost.value), cost.seconds > 0
        (4194304.0, True)
    """
    meter = Meter(device, process)
    base = meter.restarted()
    start = time.perf_counter()
    value = call() if limits.none else Watch(limits, meter, base).over(call)
    meter.wait()
    seconds = time.perf_counter() - start
    if base is None:
        return Measured(value, seconds, None)
    peak = max(meter.peak() - base, 0.0)
    if limits.bytes is not None and peak * MIB > limits.bytes:
        raise limits.too_large(peak)
    return Measured(value, seconds, peak)


@final
@dataclass(frozen=True)
class Meter:
    """Reads the memory of this process, or of a GPU.

    Args:
        device: Where the work is done.
        process: What the kernel tells of the process.
    """

    device: torch.device
    process: Path

    def restarted(self) -> float | None:
        """Start a new high-water mark; MiB held now, or ``None`` where there is no such mark."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            return self.now()
        reset = self.process / "clear_refs"
        if self.device.type != "cpu" or not reset.exists():
            return None
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone has it
        if trim is not None:
            trim(0)
        try:
            reset.write_text("5")
        except OSError:  # a sandbox may forbid it; then the peak is unknown
            return None
        return self.now()

    def wait(self) -> None:
        """Wait until a GPU has done what it was told."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def now(self) -> float:
        """MiB held now."""
        if self.device.type == "cuda":
            return torch.cuda.memory_allocated(self.device) / MIB
        return self._resident("VmRSS:")

    def peak(self) -> float:
        """MiB held at most since the mark."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / MIB
        return self._resident("VmHWM:")

    def _resident(self, field: str) -> float:
        words = (self.process / "status").read_text(encoding="ascii").split()
        return int(words[words.index(field) + 1]) / 1024


class Stopped(BaseException):
    """Ends a call from outside; no handler of ``Exception`` takes it for an error of the call's own."""


@final
class Watch:
    """A thread that looks at what a call takes, and ends it in its own thread once that is too much.

    In the main thread a signal does so, which also ends what waits; elsewhere, and on systems without signals, an
    exception that the interpreter raises at its next step.

    Args:
        limits: What it may take.
        meter: Reads the memory.
        base: MiB held when it began; ``None`` where that cannot be read.
    """

    def __init__(self, limits: Limits, meter: Meter, base: float | None) -> None:
        self._limits = limits
        self._meter = meter
        self._base = base
        self._lock = threading.Lock()
        self._ended = False
        self.error: LapwingError | None = None
        self._caller = threading.get_ident()
        self.by_signal = hasattr(signal, "pthread_kill") and threading.current_thread() is threading.main_thread()
        self._before: Any = None

    def over(self, call: Callable[[], T]) -> T:
        """The result of a call that is looked after.

        Raises:
            TooSlowError: If it took more seconds.
            TooLargeError: If it took more memory.
        """
        left = self._limits.left
        if left is not None and left <= 0:
            raise self._limits.too_slow
        if self.by_signal:
            self._before = signal.signal(signal.SIGALRM, self.told)
        thread = threading.Thread(target=self._look, name="lapwing limits", daemon=True)
        try:
            try:
                thread.start()
                return call()
            finally:
                self.end()
        except Stopped as stopped:
            self.end()
            if self.error is None:
                raise
            raise self.error from stopped
        finally:
            if self.by_signal:
                signal.signal(signal.SIGALRM, self._before)

    def end(self) -> None:
        """The call has ended, one way or another: from here on nothing is raised any more.

        What the watching thread sent last may come at any step of this. The lock is one of the interpreter's own, which
        is given back wherever that is; an ``Event``, which is written in Python, can be left locked. Nothing takes back
        what was sent: asked to, CPython 3.11 is left in a state in which a traced thread stands still for ever.
        """
        try:
            with self._lock:
                self._ended = True
            arrive()
        except Stopped:
            self.end()

    def _look(self) -> None:
        start = time.monotonic()
        told = -AGAIN
        while not self._ended:
            time.sleep(LOOK)
            now = time.monotonic()
            self.error = self.error or self._excess(now - start)
            if self.error is not None and now - told >= AGAIN:
                told = now
                self._tell()

    def _excess(self, seconds: float) -> LapwingError | None:
        """What is too much, if anything is."""
        left = self._limits.left
        if left is not None and seconds > left:
            return self._limits.too_slow
        if self._limits.bytes is None or self._base is None:
            return None
        taken = self._meter.now() - self._base
        return self._limits.too_large(taken) if taken * MIB > self._limits.bytes else None

    def _tell(self) -> None:
        with self._lock:
            if self._ended:
                return
            if self.by_signal:
                signal.pthread_kill(self._caller, signal.SIGALRM)
            else:
                raise_in(self._caller, Stopped)

    def told(self, number: int, frame: Any) -> None:
        """The handler of the signal: ours to raise, or meant for who had it before."""
        if self.error is not None and not self._ended:
            raise Stopped
        if self.error is None and callable(self._before):
            self._before(number, frame)


def raise_in(thread: int, kind: type[BaseException]) -> None:
    """Have another thread raise an exception at its next step."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))


def arrive() -> None:
    """Does nothing: at a call, the interpreter raises what another thread has sent, and runs handlers of signals."""
