"""Studies of Gaussian processes at scale, after Antorán (2024), chapter 4: ``python -m studies.gp NAME``."""

from __future__ import annotations
