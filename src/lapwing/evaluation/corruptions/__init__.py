"""Images made worse, on purpose: does confidence fall as accuracy does?

Fourteen kinds of corruption at five severities, generated from the images themselves. The idea is that of CIFAR-10-C
(Hendrycks and Dietterich 2019); the images are not those of that benchmark, and scores are not comparable with
scores on it. Lengths are stated for images of 32 pixels and grow with the shorter side of the image.
"""

from __future__ import annotations

from lapwing.evaluation.corruptions.corrupt import Sweep, corrupt, corruption_sweep
from lapwing.evaluation.corruptions.kinds import CORRUPTIONS, SEVERITIES

__all__ = ["CORRUPTIONS", "SEVERITIES", "Sweep", "corrupt", "corruption_sweep"]
