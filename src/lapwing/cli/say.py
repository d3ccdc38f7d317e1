"""What a command tells, and where it writes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def say(text: str, stream: Any = None) -> None:
    """Write a line to stdout, or to another stream; what its encoding lacks is a question mark there."""
    stream = stream or sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "replace").decode(encoding) + "\n")


def make_folder(out: Path, *names: str) -> None:
    """Make the folder of a run; what an earlier one left in it is not written over.

    Args:
        out: The folder.
        names: The files that the run will write.

    Raises:
        ConfigError: If one of them is there.
    """
    from lapwing.ground.errors import ConfigError

    there = [name for name in names if (out / name).exists()]
    if there:
        raise ConfigError("a folder of its own for each run", f"{out}, which has {', '.join(there)}", "--out ANOTHER")
    out.mkdir(parents=True, exist_ok=True)


def make_room(file: Path) -> None:
    """Make the folder of a file; one that is there is not written over.

    Args:
        file: What the run will write.

    Raises:
        ConfigError: If it is there.
    """
    make_folder(file.parent, file.name)
