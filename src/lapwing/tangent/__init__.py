"""The network made linear in its weights: a convex model with a mode of its own."""

from __future__ import annotations

from lapwing.tangent.model import Mode, Tangent
from lapwing.tangent.points import Target

__all__ = ["Mode", "Tangent", "Target"]
