"""The type checker of the tests: beartype, at the first calls of each function in each test; and without it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial, wraps
from types import CodeType, FunctionType
from typing import Any

import jaxtyping
from jaxtyping import config

CALLS = 20
"""Calls of a function that are checked in each test: those of a loop are alike, and took most of the time."""


def recording() -> bool:
    """Whether calls are recorded by ``make_fx``: sizes that are left open are no ``int``."""
    recorder = sys.modules.get("torch.fx.experimental.proxy_tensor")
    return recorder is not None and recorder.get_proxy_mode() is not None


_checked: dict[tuple[str, str, tuple[tuple[str, str], ...]], Callable[..., Any]] = {}
_seen: Counter[CodeType] = Counter()
_whole = jaxtyping.jaxtyped
_jaxtyping = {**globals(), "__name__": "jaxtyping._decorator"}
"""By this name jaxtyping knows what it has wrapped, and warnings of the library pass over its frames."""


def begin() -> None:
    """A test begins: the next calls of every function are checked."""
    _seen.clear()


def at_first(*given: Any, **options: Any) -> Any:
    """What jaxtyping makes of a function, for its first calls in a test; after them, the function itself.

    An inner function is made anew by each call of the outer one, and each time takes jaxtyping a thousand times as
    long as a call: after as many it is left as it is.
    """
    if not given and "typechecker" in options:
        return partial(at_first, **options)
    if not given or not isinstance(given[0], FunctionType):
        return _whole(*given, **options)
    (fn,) = given
    code = fn.__code__
    if _seen[code] >= CALLS:
        return fn
    whole = _whole(fn, **options)

    def counted(*args: Any, **kwargs: Any) -> Any:
        if _seen[code] >= CALLS or recording():
            return fn(*args, **kwargs)
        _seen[code] += 1
        return whole(*args, **kwargs)

    passing = FunctionType(counted.__code__, _jaxtyping, counted.__name__, None, counted.__closure__)
    return wraps(fn)(passing)


jaxtyping.jaxtyped = at_first  # its import hook decorates every function with the one that is here


def checked(stub: Callable[..., Any]) -> Callable[..., Any]:
    """What beartype makes of a stub that jaxtyping wrote for a function.

    Jaxtyping writes a new stub whenever a ``def`` is executed, and beartype compiles each. Stubs have no body, so one
    stands for all that have its name and annotations.
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
