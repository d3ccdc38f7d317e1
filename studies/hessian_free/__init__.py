"""Studies of Hessian-free Laplace, after McInerney & Kallus (2024): ``python -m studies.hessian_free NAME``."""

from __future__ import annotations
