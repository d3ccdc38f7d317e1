"""ELLA, the tangent kernel from a few landmarks: which, what they span, and when to stop adding data."""

from __future__ import annotations

from lapwing.structures.nystrom.stopping import NystromStopping
from lapwing.structures.nystrom.structure import Nystrom

__all__ = ["Nystrom", "NystromStopping"]
