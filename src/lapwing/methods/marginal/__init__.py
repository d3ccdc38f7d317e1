"""Training on the marginal likelihood: weights, prior precision and noise together (online Laplace)."""

from __future__ import annotations

from lapwing.methods.marginal.batch import LogDeterminant, MiniBatch
from lapwing.methods.marginal.bound import Bound
from lapwing.methods.marginal.gram import Gram
from lapwing.methods.marginal.objective import MarginalLikelihood
from lapwing.methods.marginal.stochastic import StochasticLanczos
from lapwing.methods.marginal.terms import Epoch
from lapwing.methods.marginal.training import MarginalTraining, train_marginal
from lapwing.methods.marginal.updates import ByEvidence, ByGradient, Updates

__all__ = [
    "Bound",
    "ByEvidence",
    "ByGradient",
    "Epoch",
    "Gram",
    "LogDeterminant",
    "MarginalLikelihood",
    "MarginalTraining",
    "MiniBatch",
    "StochasticLanczos",
    "Updates",
    "train_marginal",
]
