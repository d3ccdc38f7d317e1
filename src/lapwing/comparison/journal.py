"""A file of finished rows, one JSON object a line, which grows row by row and loses none."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, TypeAlias, cast, final

import torch

from lapwing.ground.errors import DataError
from lapwing.ground.files.atomic import as_json, check_directory

Json: TypeAlias = dict[str, Any]
"""What JSON calls an object."""

FORMAT = "lapwing.comparison"

SCHEMA = 1
"""Raised whenever a line of the older layout would be misread."""


@final
@dataclass(frozen=True)
class Journal:
    """A file to which lines are appended whole: under a lock, in one write, on the disk when it returns.

    What a process that was killed left of its last line is cut off before the next is written, and not read.

    Args:
        path: The file; it need not be there yet.

    Raises:
        ConfigError: If its folder does not exist.

    Example:
        >>> import tempfile
        >>> journal = Journal(Path(tempfile.mkdtemp()) / "run.jsonl")
        >>> journal.append({"method": "KFAC"})
        >>> written = journal.path.write_text(journal.path.read_text() + '{"method": "la')
        >>> [line["method"] for line in journal.read()]
        ['KFAC']
    """

    path: Path

    def __post_init__(self) -> None:
        check_directory(self.path)

    def read(self, word: str = "") -> list[Json]:
        """The lines there are.

        Args:
            word: Those with it alone are read.

        Raises:
            DataError: If one that was ended is no line of a comparison.
        """
        if not self.path.exists():
            return []
        with self.path.open("rb") as file, locked(file.fileno(), shared=True):
            content = file.read()
        lines = enumerate(content.split(b"\n")[:-1], 1)
        return [self._parsed(line, number) for number, line in lines if line.strip() and word.encode() in line]

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line; numbers that are not finite are ``null`` in it."""
        head = {"format": FORMAT, "schema": SCHEMA}
        text = json.dumps(as_json(head | dict(line)), ensure_ascii=False, allow_nan=False)
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        try:
            with locked(file):
                end = whole_length(file)
                os.ftruncate(file, end)
                os.lseek(file, end, os.SEEK_SET)
                write_all(file, text.encode("utf-8") + b"\n")
                os.fsync(file)
        finally:
            os.close(file)

    def _parsed(self, line: bytes, number: int) -> Json:
        hint = "another path, or the file without this line"
        try:
            found: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError("lines that compare wrote", f"'{self.path}', line {number}: {error}", hint) from error
        if not isinstance(found, dict) or found.get("format") != FORMAT or found.get("schema") != SCHEMA:
            of = found.get("format") if isinstance(found, dict) else type(found).__name__
            raise DataError("lines that compare wrote", f"'{self.path}', line {number}: one of {of!s:.40}", hint)
        return cast(Json, found)


def whole_length(file: int) -> int:
    """Bytes of a file up to the end of its last whole line."""
    size = os.lseek(file, 0, os.SEEK_END)
    step = 1 << 16
    end = size
    while end > 0:
        start = max(0, end - step)
        os.lseek(file, start, os.SEEK_SET)
        place = os.read(file, end - start).rfind(b"\n")
        if place >= 0:
            return start + place + 1
        end = start
    return 0


def write_all(file: int, content: bytes) -> None:
    """Write all of it; a system may take less at a time."""
    left = memoryview(content)
    while left:
        left = left[os.write(file, left) :]


@contextmanager
def locked(file: int, *, shared: bool = False) -> Generator[None]:
    """A lock of a file that other processes which append to it wait for, where the system has one."""
    try:
        fcntl: Any = import_module("fcntl")
    except ImportError:  # Windows
        yield
        return
    fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def circumstances(device: torch.device, packages: Iterable[str] = ("lapwing", "torch", "numpy")) -> Json:
    """What the numbers of a run depend on beside its arguments: command, commit, versions, machine.

    Args:
        device: Where the network is.
        packages: Whose versions are told.
    """
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "command": shlex.join(getattr(sys, "orig_argv", sys.argv)),
        "commit": commit(),
        "versions": {"python": platform.python_version(), **versions(packages)},
        "device": f"{device.type}: {name}",
        "threads": torch.get_num_threads(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def told_on_page(device: torch.device) -> Json:
    """Of the circumstances what the foot of a page tells.

    Args:
        device: Where the network is.
    """
    told = circumstances(device)
    words = ("command", "commit", "device", "threads", "finished")
    return {name: told[name] for name in words if told[name]} | told["versions"]


def versions(packages: Iterable[str]) -> dict[str, str]:
    """The versions of packages that are installed."""
    found = dict[str, str]()
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # run from its sources
            continue
    return found


def commit() -> str | None:
    """The commit of the repository around the current folder, "-dirty" where files differ; ``None`` outside of one."""
    words = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        said = subprocess.run(words, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.strip() or None if said.returncode == 0 else None
