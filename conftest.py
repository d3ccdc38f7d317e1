"""Loads the type checker of the tests, which jaxtyping knows by name alone: see ``--jaxtyping-packages``."""

from __future__ import annotations

import tests.checker  # noqa: F401
