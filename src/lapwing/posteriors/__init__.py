"""Posteriors: Gaussians over the weights or over the outputs of a trained network."""

from __future__ import annotations

from lapwing.posteriors.base import Posterior
from lapwing.posteriors.capabilities import Capabilities, LinearSystem
from lapwing.posteriors.dimension import Estimator, Step
from lapwing.posteriors.draws import SampledPosterior
from lapwing.posteriors.exact import ExactPosterior, WeightPosterior
from lapwing.posteriors.functions import FunctionPosterior
from lapwing.posteriors.nystrom import NystromPosterior, NystromReport
from lapwing.posteriors.solved import MatrixFreePosterior, SolvedMoments, SolvedWeights

__all__ = [
    "Capabilities",
    "Estimator",
    "ExactPosterior",
    "FunctionPosterior",
    "LinearSystem",
    "MatrixFreePosterior",
    "NystromPosterior",
    "NystromReport",
    "Posterior",
    "SampledPosterior",
    "SolvedMoments",
    "SolvedWeights",
    "Step",
    "WeightPosterior",
]
