"""Training on the marginal likelihood: weights, prior precision and noise together (online Laplace)."""

from __future__ import annotations

from lapwing.marginal.batch import LogDeterminant, MiniBatch
from lapwing.marginal.bound import Bound
from lapwing.marginal.gram import Gram
from lapwing.marginal.newton import NewtonStep, newton_step
from lapwing.marginal.objective import MarginalLikelihood
from lapwing.marginal.stochastic import StochasticLanczos
from lapwing.marginal.terms import Epoch
from lapwing.marginal.training import MarginalTraining, train_marginal
from lapwing.marginal.updates import ByEvidence, ByGradient, Updates

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
    "NewtonStep",
    "StochasticLanczos",
    "Updates",
    "newton_step",
    "train_marginal",
]
