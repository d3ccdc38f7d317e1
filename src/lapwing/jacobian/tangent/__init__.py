"""The network made linear in its weights: a convex model with a mode of its own."""

from __future__ import annotations

from lapwing.jacobian.tangent.model import Mode, Tangent
from lapwing.jacobian.tangent.points import Target

__all__ = ["Mode", "Tangent", "Target"]
