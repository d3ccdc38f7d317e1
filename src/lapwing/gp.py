"""Gaussian processes: what ``lapwing.methods.gp`` offers, so that ``import lapwing.gp`` finds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lapwing.methods import gp

if TYPE_CHECKING:
    from lapwing.methods.gp import *  # noqa: F403

__all__ = gp.__all__  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """What the package has under this name, when it is asked for."""
    return getattr(gp, name)


def __dir__() -> list[str]:
    return sorted(__all__)
