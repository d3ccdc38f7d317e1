"""What a Laplace approximation is compared with: each method a file, what it fits a predictor like any other."""

from __future__ import annotations

from lapwing.baselines.dropout import DropoutNetwork, MonteCarloDropout
from lapwing.baselines.ensemble import DeepEnsemble, Ensemble
from lapwing.baselines.mean_field import MeanField, MeanFieldPosterior
from lapwing.baselines.scaling import AffineScaling, MatrixScaling, ScaledNetwork, VectorScaling
from lapwing.baselines.swag import SWAG, SWAGPosterior
from lapwing.evaluation.baselines import PlainNetwork, Temperature
from lapwing.evaluation.task import Entry, Task

__all__ = [
    "SWAG",
    "AffineScaling",
    "DeepEnsemble",
    "DropoutNetwork",
    "Ensemble",
    "Entry",
    "MatrixScaling",
    "MeanField",
    "MeanFieldPosterior",
    "MonteCarloDropout",
    "PlainNetwork",
    "SWAGPosterior",
    "ScaledNetwork",
    "Task",
    "Temperature",
    "VectorScaling",
]
