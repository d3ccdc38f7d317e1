"""How long held-out examples are looked at, and so how many of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, final

from lapwing.ground import progress
from lapwing.ground.errors import ConfigError
from lapwing.posteriors import Posterior

FITS = 3.0
"""Times the seconds of the fit that tuning takes by default."""

FLOOR = 10.0
"""Seconds it takes by default where the fit took few: most networks are done before."""

SEARCHED = 0.1
"""Part of the seconds that is left to the search."""

Seconds: TypeAlias = float | Literal["auto"] | None
"""A budget of seconds: ``"auto"`` for three times those of the fit, ten at least; ``None`` for no end."""


@final
@dataclass(frozen=True, eq=False)
class Budget:
    """Seconds that may be spent, from now on.

    Args:
        seconds: How many; infinitely many for no end.
        begun: When they began to be spent.
        reserved: How many of them are for what comes after the examples.

    Example:
        >>> Budget(5.0).left <= 5.0
        True
    """

    seconds: float = math.inf
    begun: float = field(default_factory=lambda: progress.clock())
    reserved: float = 0.0

    @classmethod
    def of(cls, seconds: Seconds, posterior: Posterior) -> Budget:
        """That of an option, for a posterior; the default ends no solves, which are few.

        In the default is what finding the scale of knowledge may take, as long as the fit.
        """
        if seconds is None or (seconds == "auto" and not posterior.exact):
            return cls()
        if seconds == "auto":
            return cls(max(FLOOR, FITS * posterior.fit_seconds), reserved=posterior.fit_seconds)
        return cls(float(seconds))

    @property
    def spent(self) -> float:
        """Seconds that are spent."""
        return progress.clock() - self.begun

    @property
    def left(self) -> float:
        """Seconds that are left for looking at examples."""
        return (1.0 - SEARCHED) * self.seconds - self.reserved - self.spent


def check_seconds(seconds: Seconds) -> None:
    """Refuse what is no budget.

    Raises:
        ConfigError: If it is none.
    """
    if seconds is None or seconds == "auto":
        return
    if isinstance(seconds, str) or not 0.0 < seconds < math.inf:
        raise ConfigError('a positive number of seconds, "auto" or None', f"seconds={seconds!r}", 'seconds="auto"')
