"""Zero-mean Gaussian priors over the weights, told apart by how many precisions they have."""

from __future__ import annotations

from lapwing.priors.base import Prior
from lapwing.priors.diagonal import DiagonalPrior
from lapwing.priors.g_prior import GPrior
from lapwing.priors.isotropic import Isotropic
from lapwing.priors.layerwise import Layerwise

__all__ = ["DiagonalPrior", "GPrior", "Isotropic", "Layerwise", "Prior"]
