"""Posteriors: Gaussians over the weights or over the outputs of a trained network."""

from __future__ import annotations

from lapwing.posteriors.base import Posterior
from lapwing.posteriors.dimension import Estimator
from lapwing.posteriors.draws import SampledPosterior
from lapwing.posteriors.exact import ExactPosterior
from lapwing.posteriors.functions import FunctionPosterior
from lapwing.posteriors.matrix_free import MatrixFreePosterior, SolvedMoments
from lapwing.posteriors.nystrom import NystromPosterior, NystromReport
from lapwing.posteriors.sampled import SampledWeights
from lapwing.posteriors.solved import SolvedWeights
from lapwing.posteriors.step import Step
from lapwing.posteriors.weights import WeightPosterior

__all__ = [
    "Estimator",
    "ExactPosterior",
    "FunctionPosterior",
    "MatrixFreePosterior",
    "NystromPosterior",
    "NystromReport",
    "Posterior",
    "SampledPosterior",
    "SampledWeights",
    "SolvedMoments",
    "SolvedWeights",
    "Step",
    "WeightPosterior",
]
