"""Training on the marginal likelihood: weights, prior precision and noise together (online Laplace)."""

from __future__ import annotations

from lapwing.methods.marginal.bound import Bound
from lapwing.methods.marginal.epochs import Epoch
from lapwing.methods.marginal.hyper import ByEvidence, ByGradient, Updates
from lapwing.methods.marginal.log_det import GramDeterminant, LogDeterminant, MiniBatch, StochasticLanczos
from lapwing.methods.marginal.objective import MarginalLikelihood
from lapwing.methods.marginal.training import MarginalTraining, train_marginal

__all__ = [
    "Bound",
    "ByEvidence",
    "ByGradient",
    "Epoch",
    "GramDeterminant",
    "LogDeterminant",
    "MarginalLikelihood",
    "MarginalTraining",
    "MiniBatch",
    "StochasticLanczos",
    "Updates",
    "train_marginal",
]
