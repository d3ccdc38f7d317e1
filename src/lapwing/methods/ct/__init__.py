"""Tomography: a projector, classical reconstructions, and what they need."""

from __future__ import annotations

from lapwing.methods.ct.geometry import FanBeam, Geometry, Parallel2d, Parallel3d, equidistant

__all__ = [
    "FanBeam",
    "Geometry",
    "Parallel2d",
    "Parallel3d",
    "equidistant",
]
