"""The tangent kernel from a few landmarks: which, what they span, and when to stop adding data."""

from __future__ import annotations

from lapwing.nystrom.gram import LandmarkRows
from lapwing.nystrom.landmarks import Span, span
from lapwing.nystrom.sampling import Reservoir, fill
from lapwing.nystrom.stopping import EarlyStopping, Watch

__all__ = ["EarlyStopping", "LandmarkRows", "Reservoir", "Span", "Watch", "fill", "span"]
