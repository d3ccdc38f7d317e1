"""Run one side of a comparison in a fresh process, and turn what it measured into rows.

The other half, what happens inside the fresh process, is ``benchmarks.meter``.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TextIO

from benchmarks.report import GIB, ROOT, Row, beside, grouped, told_by_system

QUANTITIES = ("seconds", "peak_mib")


@dataclass(frozen=True)
class Step:
    """One step of one side: what it cost, or why it has no cost.

    Args:
        name: What was done, such as ``"fit"``.
        seconds: Wall-clock seconds, the median over the rounds; ``None`` where the step failed.
        peak_mib: Peak memory in MiB above the process with network and data loaded; ``None`` where it failed.
        label: Which of several ways to do the step, such as ``"@64"`` for batches of 64.
        note: Why the step did not finish, or what was tried before it did.
        facts: What else its process told of it.
    """

    name: str
    seconds: float | None
    peak_mib: float | None
    label: str = ""
    note: str = ""
    facts: Row = field(default_factory=dict)


def rows_of(work: str, ours: Step, peer: Step, peer_name: str) -> list[Row]:
    """Both quantities of one step, as rows, with the notes of both sides."""
    name = f"{peer_name} {peer.label}".strip()
    note = "; ".join(f"{side}: {step.note}" for side, step in (("ours", ours), ("peer", peer)) if step.note)
    return [beside(work, kind, getattr(ours, kind), getattr(peer, kind), name, note) for kind in QUANTITIES]


def run_isolated(
    work: Callable[..., None],
    *,
    timeout: float = 300.0,
    limit_gib: float = 14.0,
    **options: Any,
) -> tuple[Step, ...]:
    """Call ``work(meter, **options)`` in a fresh process and collect the steps it measured.

    Whatever happens to the process is a result, not an exception: a step that raises, runs out of memory,
    takes too long or takes the process down with it is a ``Step`` without numbers that says so.

    Args:
        work: A function at the top of an importable module; its first argument is a ``Meter``.
        timeout: Seconds allowed between two reports of the process (loading, or one step), then it is killed.
        limit_gib: Limit on the memory of the process in GiB, and never more than 80 % of what is free now;
            enforced by the kernel, on the CPU only.
        **options: Passed on to ``work`` as JSON.

    Returns:
        The steps in order of first appearance; of several rounds the median, of memory the largest. Where work was
        done several times at once, the rounds with the most of it count.
    """
    read_fd, write_fd = os.pipe()
    name = f"{work.__module__}:{work.__qualname__}"
    order = json.dumps({"work": name, "options": options, "limit_gib": min(limit_gib, 0.8 * _free_gib())})
    with tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace") as said:
        child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.meter", str(write_fd), order],
            pass_fds=[write_fd],
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
        )
        os.close(write_fd)
        with os.fdopen(read_fd, encoding="utf-8") as reports:
            events, late = _listen(child, reports, timeout)
        code = child.wait()
        said.seek(0)
        return merged(events, _ending(code, events, said.read(), timeout=timeout if late else None))


def _free_gib() -> float:
    free = told_by_system("meminfo", "MemAvailable")
    return int(free.split()[0]) * 1024 / GIB if free else float("inf")


def _listen(child: subprocess.Popen[bytes], reports: TextIO, timeout: float) -> tuple[list[dict[str, Any]], bool]:
    """All events of the child, and whether it was killed for being late."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in reports:
            lines.put(line)
        lines.put(None)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    events: list[dict[str, Any]] = []
    late = False
    try:
        while (line := lines.get(timeout=timeout)) is not None:
            events.append(json.loads(line))
    except queue.Empty:
        late = True
    finally:
        if child.poll() is None and (late or sys.exc_info()[0] is not None):
            os.killpg(child.pid, signal.SIGKILL)
        thread.join()
    return events, late


def _ending(code: int, events: list[dict[str, Any]], said: str, *, timeout: float | None) -> Step | None:
    """The step in which the process ended before its work was done, if it did."""
    if code == 0 and timeout is None:
        return None
    last = events[-1] if events else {"name": "load"}
    name = "between steps" if "seconds" in last or "facts" in last else last["name"]
    label = last.get("label", "")
    if timeout is not None:
        return Step(name, None, None, label, f"stopped after {timeout:g} s")
    words = said.strip().splitlines()
    reason = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
    return Step(name, None, None, label, f"{reason}: {words[-1] if words else 'no message'}"[:300])


def merged(events: list[dict[str, Any]], ending: Step | None) -> tuple[Step, ...]:
    """The steps of what a process reported, and the one in which it ended."""
    told: dict[str, Row] = {}
    for event in events:
        told.setdefault(event["name"], {}).update(event.get("facts", {}))
    steps: list[Step] = []
    for (name, label), found in grouped((event for event in events if "seconds" in event), "name", "label").items():
        failures, most = (
            [event["failure"] for event in found if event["failure"]],
            max(event["times"] for event in found),
        )
        if failures:
            steps.append(Step(name, None, None, label, failures[0], told[name]))
        else:
            seconds = statistics.median(event["seconds"] for event in found if event["times"] == most)
            steps.append(Step(name, seconds, max(event["peak_mib"] for event in found), label, facts=told[name]))
    return tuple(steps) if ending is None else (*steps, replace(ending, facts=told.get(ending.name, {})))
