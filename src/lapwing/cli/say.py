"""What a command tells."""

from __future__ import annotations

import sys
from typing import Any


def say(text: str, stream: Any = None) -> None:
    """Write a line to stdout, or to another stream."""
    (stream or sys.stdout).write(text + "\n")
