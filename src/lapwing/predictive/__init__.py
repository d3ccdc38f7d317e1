"""Predictive distributions: from what is known of a network's outputs to what is known of the targets."""

from __future__ import annotations

from lapwing.predictive.density import canonical_targets, held_out_losses, log_joint, log_predictive
from lapwing.predictive.distributions import Classification, Counts, MultiLabel, Regression
from lapwing.predictive.links import concentration, laplace_bridge, monte_carlo, pairwise, probit, probit_binary
from lapwing.predictive.outputs import Draws, JointMoments, Moments
from lapwing.predictive.predict import Link, NetworkPredictor, Predictive, check_link, predictive
from lapwing.predictive.quadrature import expected_sigmoid, quasi_monte_carlo
from lapwing.predictive.wide import BasisMoments, FactorMoments, Outputs, WideMoments, spread, with_spread

__all__ = [
    "BasisMoments",
    "Classification",
    "Counts",
    "Draws",
    "FactorMoments",
    "JointMoments",
    "Link",
    "Moments",
    "MultiLabel",
    "NetworkPredictor",
    "Outputs",
    "Predictive",
    "Regression",
    "WideMoments",
    "canonical_targets",
    "check_link",
    "concentration",
    "expected_sigmoid",
    "held_out_losses",
    "laplace_bridge",
    "log_joint",
    "log_predictive",
    "monte_carlo",
    "pairwise",
    "predictive",
    "probit",
    "probit_binary",
    "quasi_monte_carlo",
    "spread",
    "with_spread",
]
