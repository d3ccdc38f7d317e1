"""The type checker of the tests: beartype, which a function inside another one goes through once; and without it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from jaxtyping import config

_checked: dict[tuple[str, str, tuple[tuple[str, str], ...]], Callable[..., Any]] = {}


def checked(stub: Callable[..., Any]) -> Callable[..., Any]:
    """What beartype makes of a stub that jaxtyping wrote for a function.

    Jaxtyping writes a new stub whenever a ``def`` is executed, for an inner function at every call of the outer one,
    and beartype compiles each. Stubs have no body, so one stands for all that have its name and annotations.
    """
    key = (stub.__module__, stub.__qualname__, tuple((name, str(hint)) for name, hint in stub.__annotations__.items()))
    if key not in _checked:
        from beartype import beartype  # here, for machines that lack it run tests without the checker

        _checked[key] = beartype(stub)
    return _checked[key]


@contextmanager
def unchecked() -> Generator[None]:
    """The code inside runs without the tests' own type checker, as a user's does."""
    config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", False)
