"""Run one side of a comparison in a fresh process, and turn what it measured into rows of a JSON report.

The other half, what happens inside the fresh process, is ``benchmarks.meter``.
"""

from __future__ import annotations

import json
import math
import os
import platform
import queue
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

QUANTITIES = ("seconds", "peak_mib")
GIB = 2**30
ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Step:
    """One step of one side: what it cost, or why it has no cost.

    Args:
        name: What was done, such as ``"fit"``.
        seconds: Wall-clock seconds, the median over the rounds; ``None`` where the step failed.
        peak_mib: Peak memory in MiB above the process with network and data loaded; ``None`` where it failed.
        label: Which of several ways to do the step, such as ``"@64"`` for batches of 64.
        note: Why the step did not finish, or what was tried before it did.
        out_of_memory: Whether it was the memory limit that stopped it.
    """

    name: str
    seconds: float | None
    peak_mib: float | None
    label: str = ""
    note: str = ""
    out_of_memory: bool = False


@dataclass(frozen=True)
class Row:
    """One line of a report: the same quantity for both sides.

    Args:
        work: What was done, such as ``"lenet/kfac/fit"``.
        quantity: ``"seconds"``, ``"peak_mib"``, or what else the benchmark compares.
        ours: Cost to lapwing; ``None`` where it did not run.
        peer: Cost to the peer; ``None`` where it did not run.
        peer_name: Which peer, its version and how it was set.
        note: Why a side has no number, or what differs between the sides.

    Example:
        >>> Row("lenet/kfac/fit", "seconds", ours=0.2, peer=0.4, peer_name="peer 1.0").ratio
        0.5
    """

    work: str
    quantity: str
    ours: float | None
    peer: float | None
    peer_name: str
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Ours over peer, or ``None`` where a side has no number (or the peer's is zero)."""
        return self.ours / self.peer if self.ours is not None and self.peer else None

    def as_json(self) -> dict[str, str | float | None]:
        """The row as JSON writes it; ``note`` only where there is one."""
        row: dict[str, str | float | None] = {
            "work": self.work,
            "quantity": self.quantity,
            "ours": self.ours,
            "peer": self.peer,
            "peer_name": self.peer_name,
            "ratio": self.ratio,
        }
        return row | {"note": self.note} if self.note else row


def table(rows: Iterable[Row], limit: Callable[[Row], str] | None = None) -> str:
    """The rows as lines of text.

    Args:
        rows: The rows.
        limit: What stands beside the ratio, such as the limit it is held against; ``None`` for nothing.
    """
    from lapwing.comparison.table import aligned  # here, because processes that are measured import this module too

    beside = [] if limit is None else ["limit"]
    lines = [["work", "quantity", "ours", "peer", "ratio", *beside]]
    notes = ["peer"]
    for row in rows:
        numbers = [f"{v:.4g}" if v is not None else "-" for v in (row.ours, row.peer, row.ratio)]
        lines.append([row.work, row.quantity, *numbers, *([] if limit is None else [limit(row)])])
        notes.append("; ".join(part for part in (row.peer_name, row.note) if part))
    return "".join(f"{line}  {note}".rstrip() + "\n" for line, note in zip(aligned(lines, 2), notes, strict=True))


def rows_of(work: str, ours: Step, peer: Step, peer_name: str) -> tuple[Row, ...]:
    """Both quantities of one step, as rows, with the notes of both sides."""
    name = f"{peer_name} {peer.label}".strip()
    note = "; ".join(f"{side}: {step.note}" for side, step in (("ours", ours), ("peer", peer)) if step.note)
    return tuple(
        Row(work, quantity, getattr(ours, quantity), getattr(peer, quantity), name, note) for quantity in QUANTITIES
    )


def write_json(path: Path, rows: Sequence[Row | Mapping[str, Any]]) -> None:
    """Write ``{"commit", "command", "machine", "rows"}`` to ``path``, replacing it whole or not at all."""
    from lapwing.ground import archive  # here, because processes that are measured import this module too

    report = {
        "commit": commit(),
        "command": command(sys.argv),
        "machine": machine(),
        "rows": [row.as_json() if isinstance(row, Row) else row for row in rows],
    }
    archive.write_json(finite(report), path)


def finite(value: Any) -> Any:
    """What JSON can hold of a value: numbers that are not finite become ``None``, because JSON has none."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def command(words: Sequence[str]) -> str:
    """What was typed, folders of data and output left out, so that no path of one machine is written down.

    Args:
        words: The program and its options, as ``sys.argv`` holds them.

    Example:
        >>> command(["benchmarks/cost.py", "--data", "/somewhere/data", "--json", "/else/cost.json", "--seeds", "5"])
        'python -m benchmarks.cost --data DIR --json cost.json --seeds 5'
    """
    program = Path(words[0]).resolve().with_suffix("")
    module = program.relative_to(ROOT) if program.is_relative_to(ROOT) else Path(program.name)
    said = ["DIR" if before == "--data" else _without_folder(word) for before, word in pairwise(words)]
    return shlex.join(["python", "-m", ".".join(part for part in module.parts if part != "__main__"), *said])


def _without_folder(word: str) -> str:
    return Path(word).name if Path(word).is_absolute() else word


def commit() -> str:
    """The commit of this repository, ``-dirty`` where files differ from it, ``unknown`` outside git."""
    ask = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"],
        capture_output=True,
        text=True,
        check=False,
    )
    return ask.stdout.strip() or "unknown"


def machine() -> dict[str, str | int | float]:
    """What the numbers depend on: processor, cores, memory, versions (no names of hosts or paths)."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": _processor(),
        "cores": os.cpu_count() or 1,
        "memory_gib": round(pages / GIB, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


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
        The steps in order of first appearance; of several rounds the median, of memory the largest.
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
        return _merge(events, _ending(code, events, said.read(), timeout=timeout if late else None))


def _free_gib() -> float:
    info = Path("/proc/meminfo")
    lines = info.read_text().splitlines() if info.exists() else []
    free = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return free[0] * 1024 / GIB if free else float("inf")


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
    last = events[-1] if events else {"name": "load", "label": ""}
    name = "between steps" if "seconds" in last else last["name"]
    if timeout is not None:
        return Step(name, None, None, last["label"], f"stopped after {timeout:g} s")
    words = said.strip().splitlines()
    reason = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
    note = f"{reason}: {words[-1] if words else 'no message'}"[:300]
    memory = code == -signal.SIGKILL or any("alloc" in line.lower() for line in words[-5:])
    return Step(name, None, None, last["label"], note, memory)


def _merge(events: list[dict[str, Any]], ending: Step | None) -> tuple[Step, ...]:
    rounds: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for event in events:
        if "seconds" in event:
            rounds.setdefault((event["name"], event["label"]), []).append(event)
    steps: list[Step] = []
    for (name, label), found in rounds.items():
        failed = [event for event in found if event["failure"]]
        if failed:
            steps.append(Step(name, None, None, label, failed[0]["failure"], failed[0]["out_of_memory"]))
        else:
            seconds = statistics.median(event["seconds"] for event in found)
            steps.append(Step(name, seconds, max(event["peak_mib"] for event in found), label))
    return tuple(steps) if ending is None else (*steps, ending)
