"""The tangent kernel from a few landmarks: which, what they span, and when to stop adding data."""

from __future__ import annotations

from lapwing.structures.ella.landmarks import LandmarkRows, Landmarks, Span, candidates, span
from lapwing.structures.ella.sampling import Reservoir, fill
from lapwing.structures.ella.stopping import EarlyStopping, Watch

__all__ = [
    "EarlyStopping",
    "LandmarkRows",
    "Landmarks",
    "Reservoir",
    "Span",
    "Watch",
    "candidates",
    "fill",
    "span",
]
