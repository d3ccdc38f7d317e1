"""What a Laplace approximation is compared with: each method a file, what it fits a predictor like any other."""

from __future__ import annotations

from lapwing.baselines.conformal_intervals import ConformalIntervals, PredictionIntervals
from lapwing.baselines.conformal_quantile import Coverage, conformal_quantile
from lapwing.baselines.conformal_sets import ConformalSets, PredictionSets
from lapwing.baselines.dropout import DropoutNetwork, MonteCarloDropout
from lapwing.baselines.energy import Energy
from lapwing.baselines.ensemble import DeepEnsemble, Ensemble
from lapwing.baselines.mahalanobis import Mahalanobis, MahalanobisScore
from lapwing.baselines.mean_field import MeanField, MeanFieldPosterior
from lapwing.baselines.nearest_neighbours import NearestNeighbours, NeighbourScore
from lapwing.baselines.out_of_distribution import Score, ScoredNetwork
from lapwing.baselines.scaling import AffineScaling, MatrixScaling, ScaledNetwork, VectorScaling
from lapwing.baselines.swag import SWAG, SWAGPosterior
from lapwing.evaluation.plain_network import PlainNetwork, Temperature
from lapwing.evaluation.task import Entry, Task

__all__ = [
    "SWAG",
    "AffineScaling",
    "ConformalIntervals",
    "ConformalSets",
    "Coverage",
    "DeepEnsemble",
    "DropoutNetwork",
    "Energy",
    "Ensemble",
    "Entry",
    "Mahalanobis",
    "MahalanobisScore",
    "MatrixScaling",
    "MeanField",
    "MeanFieldPosterior",
    "MonteCarloDropout",
    "NearestNeighbours",
    "NeighbourScore",
    "PlainNetwork",
    "PredictionIntervals",
    "PredictionSets",
    "SWAGPosterior",
    "ScaledNetwork",
    "Score",
    "ScoredNetwork",
    "Task",
    "Temperature",
    "VectorScaling",
    "conformal_quantile",
]
