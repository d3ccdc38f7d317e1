"""Predictive distributions: from what is known of a network's outputs to what is known of the targets."""

from __future__ import annotations

from lapwing.moments.outputs import Draws, JointMoments, Moments
from lapwing.moments.wide import BasisMoments, FactorMoments, Outputs, VarianceMoments, WideMoments
from lapwing.predictive.distributions import (
    Classification,
    Counts,
    HeavyTailedRegression,
    MultiLabel,
    OverdispersedCounts,
    Predictive,
    Regression,
)
from lapwing.predictive.information import expected_entropy, mutual_information
from lapwing.predictive.links import (
    Link,
    check_link,
    concentration,
    laplace_bridge,
    monte_carlo,
    pairwise,
    probit,
    probit_binary,
)
from lapwing.predictive.quadrature import expected_sigmoid, quasi_monte_carlo

__all__ = [
    "BasisMoments",
    "Classification",
    "Counts",
    "Draws",
    "FactorMoments",
    "HeavyTailedRegression",
    "JointMoments",
    "Link",
    "Moments",
    "MultiLabel",
    "Outputs",
    "OverdispersedCounts",
    "Predictive",
    "Regression",
    "VarianceMoments",
    "WideMoments",
    "check_link",
    "concentration",
    "expected_entropy",
    "expected_sigmoid",
    "laplace_bridge",
    "monte_carlo",
    "mutual_information",
    "pairwise",
    "probit",
    "probit_binary",
    "quasi_monte_carlo",
]
