"""The tangent kernel from a few landmarks: which, what they span, and when to stop adding data."""

from __future__ import annotations

from lapwing.nystrom.accumulation import Accumulated, accumulated, missed
from lapwing.nystrom.gram import LandmarkRows
from lapwing.nystrom.landmarks import Landmarks, Span, candidates, span
from lapwing.nystrom.sampling import Reservoir, fill
from lapwing.nystrom.stopping import EarlyStopping, Watch

__all__ = [
    "Accumulated",
    "EarlyStopping",
    "LandmarkRows",
    "Landmarks",
    "Reservoir",
    "Span",
    "Watch",
    "accumulated",
    "candidates",
    "fill",
    "missed",
    "span",
]
