"""Loads the type checker of the tests, which jaxtyping knows by name alone: see ``--jaxtyping-packages``."""

from __future__ import annotations

import tests.checker


def pytest_runtest_setup() -> None:
    """Before each test and doctest."""
    tests.checker.begin()
