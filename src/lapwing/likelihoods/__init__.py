"""Likelihoods: how a network's outputs meet the targets."""

from __future__ import annotations

from lapwing.ground.labels import IGNORED
from lapwing.likelihoods.base import Likelihood
from lapwing.likelihoods.categorical import Categorical
from lapwing.likelihoods.elementwise import Bernoulli, Poisson
from lapwing.likelihoods.gaussian import Gaussian, HeteroscedasticGaussian
from lapwing.likelihoods.negative_binomial import NegativeBinomial
from lapwing.likelihoods.student_t import StudentT

__all__ = [
    "IGNORED",
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Likelihood",
    "NegativeBinomial",
    "Poisson",
    "StudentT",
]
