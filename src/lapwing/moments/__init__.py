"""What is known of a network's outputs: Gaussian moments, position by position or of all together, or draws."""

from __future__ import annotations

from lapwing.moments.outputs import Draws, JointMoments, Moments
from lapwing.moments.wide import BasisMoments, FactorMoments, Outputs, VarianceMoments, WideMoments

__all__ = [
    "BasisMoments",
    "Draws",
    "FactorMoments",
    "JointMoments",
    "Moments",
    "Outputs",
    "VarianceMoments",
    "WideMoments",
]
