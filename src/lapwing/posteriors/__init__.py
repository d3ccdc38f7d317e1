"""Posteriors: Gaussians over the weights or over the outputs of a trained network."""

from __future__ import annotations

from lapwing.posteriors.base import Posterior
from lapwing.posteriors.capabilities import Capabilities, LinearSystem
from lapwing.posteriors.effective_dimension import Estimator
from lapwing.posteriors.exact import ExactPosterior
from lapwing.posteriors.function_space import FunctionPosterior
from lapwing.posteriors.iterative import IterativePosterior
from lapwing.posteriors.matrix_free import MatrixFreePosterior, SolvedMoments
from lapwing.posteriors.nystrom import NystromPosterior, NystromReport
from lapwing.posteriors.sampled import SampledPosterior
from lapwing.posteriors.step import Step
from lapwing.posteriors.weight_space import WeightPosterior

__all__ = [
    "Capabilities",
    "Estimator",
    "ExactPosterior",
    "FunctionPosterior",
    "IterativePosterior",
    "LinearSystem",
    "MatrixFreePosterior",
    "NystromPosterior",
    "NystromReport",
    "Posterior",
    "SampledPosterior",
    "SolvedMoments",
    "Step",
    "WeightPosterior",
]
