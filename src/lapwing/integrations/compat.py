"""Other libraries' calls over lapwing: ``lw.compat.laplace_torch``."""

from __future__ import annotations

from lapwing.integrations import laplace_torch

__all__ = ["laplace_torch"]
