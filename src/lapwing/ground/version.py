"""The version of lapwing."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def installed() -> str:
    """The version of this lapwing; 0.0.0 where it runs from its sources without being installed."""
    try:
        return version("lapwing")
    except PackageNotFoundError:
        return "0.0.0"


def with_extra(extra: str) -> str:
    """What to type for the packages of an extra; lapwing is installed from its sources, it is on no index yet.

    Args:
        extra: Its name in ``pyproject.toml``.
    """
    return f"pip install '.[{extra}]' in the sources of lapwing"
