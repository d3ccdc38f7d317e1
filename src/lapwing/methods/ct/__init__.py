"""Tomography: a projector, classical reconstructions, and what they need."""

from __future__ import annotations

from lapwing.methods.ct.geometry import FanBeam, Geometry, Parallel2d, Parallel3d, equidistant
from lapwing.methods.ct.image import ImagePosterior, Interval, linear_image
from lapwing.methods.ct.observed import Measurement, Observed
from lapwing.methods.ct.unet import UNet

__all__ = [
    "FanBeam",
    "Geometry",
    "ImagePosterior",
    "Interval",
    "Measurement",
    "Observed",
    "Parallel2d",
    "Parallel3d",
    "UNet",
    "equidistant",
    "linear_image",
]
