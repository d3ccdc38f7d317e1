"""Expectation maximisation: the state, the expectation, the maximisation, and the steps."""

from __future__ import annotations

from lapwing.tuning.em.em import EM

__all__ = ["EM"]
