"""Zero-mean Gaussian priors over the weights, told apart by how many precisions they have."""

from __future__ import annotations

from lapwing.priors.base import Isotropic, Prior
from lapwing.priors.several import DiagonalPrior, GPrior, Layerwise

__all__ = ["DiagonalPrior", "GPrior", "Isotropic", "Layerwise", "Prior"]
