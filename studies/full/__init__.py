"""Studies of the full-covariance Laplace approximation, after Brack (2023): ``python -m studies.full NAME``."""

from __future__ import annotations
