"""Passes over the data as they are made."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import final

from tqdm.auto import tqdm


@final
class Passes:
    """Counts passes over the data, each fit's and each column's by itself, on a progress bar while one is shown.

    Example:
        >>> passes = Passes()
        >>> with passes.shown(progress=False):
        ...     passes.add(3)
        >>> passes.total
        3
    """

    def __init__(self) -> None:
        self.total = 0
        self._bar: tqdm | None = None

    @contextmanager
    def shown(self, progress: bool) -> Generator[None]:
        """Show a bar meanwhile; how many passes there will be is not known."""
        with tqdm(desc="refits", disable=not progress, unit="pass", leave=False) as self._bar:
            try:
                yield
            finally:
                self._bar = None

    def add(self, number: int) -> None:
        """Some more passes."""
        self.total += number
        if self._bar is not None:
            self._bar.update(number)
