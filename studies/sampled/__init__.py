"""Studies of the linear model of a network and its draws, after Antorán (2024): ``python -m studies.sampled NAME``."""

from __future__ import annotations
