"""Posteriors: Gaussians over the weights or over the outputs of a trained network."""

from __future__ import annotations

from lapwing.posteriors.base import Posterior, Step
from lapwing.posteriors.functions import FunctionPosterior
from lapwing.posteriors.weights import WeightPosterior

__all__ = ["FunctionPosterior", "Posterior", "Step", "WeightPosterior"]
