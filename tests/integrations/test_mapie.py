"""Conformal sets and intervals are those of MAPIE."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from torch import nn

from lapwing.baselines import ConformalIntervals, ConformalSets, PlainNetwork
from lapwing.likelihoods import Gaussian
from tests.posterior_cases import normal

pytest.importorskip("mapie", reason="MAPIE is not installed")


class Probabilities(ClassifierMixin, BaseEstimator):
    """An estimator whose probabilities are its inputs."""

    def __init__(self) -> None:
        self.classes_ = np.arange(5)
        self.fitted_ = True

    def fit(self, x: Any, y: Any) -> Probabilities:
        return self

    def predict_proba(self, x: Any) -> Any:
        return np.asarray(x)

    def predict(self, x: Any) -> Any:
        return np.asarray(x).argmax(1)


def test_split_sets_are_those_of_mapie() -> None:
    from mapie.classification import SplitConformalClassifier

    x, new = 2 * normal(200, 5, seed=2), 2 * normal(100, 5, seed=3)
    y = (x + 3 * normal(200, 5, seed=4)).argmax(1)
    theirs = SplitConformalClassifier(Probabilities(), 0.9, conformity_score="lac")
    theirs.conformalize(x.softmax(1).numpy(), y.numpy())
    _, sets = theirs.predict_set(new.softmax(1).numpy())
    ours = ConformalSets(score="split").on(PlainNetwork(nn.Identity()), (x, y)).sets(new)
    np.testing.assert_array_equal(ours.numpy(), sets[:, :, 0])


class Means(RegressorMixin, BaseEstimator):
    """An estimator that predicts its inputs."""

    def __init__(self) -> None:
        self.fitted_ = True

    def fit(self, x: Any, y: Any) -> Means:
        return self

    def predict(self, x: Any) -> Any:
        return np.asarray(x)[:, 0]


def test_split_intervals_are_those_of_mapie() -> None:
    from mapie.regression import SplitConformalRegressor

    x, new = normal(200, 1), normal(50, 1, seed=2)
    y = x + normal(200, 1, seed=1).pow(3)
    theirs = SplitConformalRegressor(Means(), 0.9)
    theirs.conformalize(x.numpy(), y[:, 0].numpy())
    _, intervals = theirs.predict_interval(new.numpy())
    low, high = ConformalIntervals(scaled=False).on(PlainNetwork(nn.Identity(), Gaussian()), (x, y)).interval(new)
    np.testing.assert_allclose(torch.cat([low, high], 1).numpy(), intervals[:, :, 0], rtol=1e-9)
