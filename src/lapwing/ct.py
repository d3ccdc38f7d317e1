"""Tomography: what ``lapwing.methods.ct`` offers, so that ``import lapwing.ct`` finds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lapwing.methods import ct

if TYPE_CHECKING:
    from lapwing.methods.ct import *  # noqa: F403

__all__ = ct.__all__  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """What the package has under this name, when it is asked for."""
    return getattr(ct, name)


def __dir__() -> list[str]:
    return sorted(__all__)
