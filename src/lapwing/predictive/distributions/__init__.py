"""Predictive distributions of targets: one of c classes, several labels at once, real numbers, counts."""

from __future__ import annotations

from lapwing.predictive.distributions.base import Predictive
from lapwing.predictive.distributions.classification import Classification
from lapwing.predictive.distributions.counts import Counts
from lapwing.predictive.distributions.heavy_tailed import HeavyTailedRegression
from lapwing.predictive.distributions.multilabel import MultiLabel
from lapwing.predictive.distributions.overdispersed import OverdispersedCounts
from lapwing.predictive.distributions.regression import Regression

__all__ = [
    "Classification",
    "Counts",
    "HeavyTailedRegression",
    "MultiLabel",
    "OverdispersedCounts",
    "Predictive",
    "Regression",
]
