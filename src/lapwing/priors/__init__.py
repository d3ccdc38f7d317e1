"""Zero-mean Gaussian priors over the weights, told apart by how many precisions they have."""

from __future__ import annotations

from lapwing.priors.base import Prior
from lapwing.priors.diagonal import DiagonalPrior
from lapwing.priors.gprior import GPrior
from lapwing.priors.grouped import Isotropic, Layerwise
from lapwing.priors.state import prior_from_state

__all__ = ["DiagonalPrior", "GPrior", "Isotropic", "Layerwise", "Prior", "prior_from_state"]
