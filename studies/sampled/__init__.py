"""Studies of sample-based linearised Laplace with EM, after Antorán (2024): ``python -m studies.sampled NAME``."""

from __future__ import annotations
