"""Errors that come from the user's own code: which they are, and where."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

import lapwing
from lapwing.ground.errors import INSIDE

INSTALLED = tuple(
    Path(place).resolve()
    for place in (*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")), *lapwing.__path__)
    if place
)
"""Folders whose code is not the user's."""


def place_of(error: BaseException) -> str | None:
    """The last line of the user's own that an error went through; ``None`` where there is none.

    Args:
        error: What was raised, with its traceback.
    """
    if isinstance(error, SyntaxError) and error.filename and _is_own(error.filename):
        return f"line {error.lineno} of {error.filename}"
    own = list[str]()
    for frame, line in traceback.walk_tb(error.__traceback__):
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package not in INSIDE and _is_own(frame.f_code.co_filename):
            own.append(f"line {line} of {frame.f_code.co_filename}")
    return own[-1] if own else None


def told(error: BaseException, place: str) -> str:
    """An error of the user's own code in a sentence or two.

    Args:
        error: What was raised.
        place: Where; see ``place_of``.
    """
    said = " ".join(str(error).split())
    what = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return f"{what.rstrip('.')}, from {place}, your own code. Try --traceback for the whole way there."


def _is_own(file: str) -> bool:
    """Whether a file is none of Python's, of an installed package's or of lapwing's."""
    path = Path(file).resolve()
    return path.is_file() and not any(path.is_relative_to(folder) for folder in INSTALLED)  # <string> is no file
