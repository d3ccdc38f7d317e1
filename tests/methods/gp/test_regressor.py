"""The regressor as scikit-learn uses it."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_diabetes
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from lapwing.methods.gp.regressor import GPRegressor


@pytest.mark.filterwarnings("ignore")
def test_it_is_an_estimator() -> None:
    """Without the search, which would run a hundred times."""
    check_estimator(GPRegressor(kernel=None, tune=False))


def test_one_observation_chooses_nothing() -> None:
    regressor = GPRegressor().fit([[2.0]], [3.0])
    assert regressor.predict([[2.0]]) == pytest.approx([3.0])


def test_it_predicts_as_scikit_learn_does_with_the_same_kernel() -> None:
    x, y = load_diabetes(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(x, y, train_size=120, random_state=0)
    ours = make_pipeline(StandardScaler(), GPRegressor(mean="zero")).fit(train_x, train_y)
    kernel = sk.ConstantKernel(1.0) * sk.Matern([10**0.5] * 10, (1e-4, 1e5), nu=1.5) + sk.WhiteKernel(0.1)
    theirs = make_pipeline(StandardScaler(), GaussianProcessRegressor(kernel, alpha=0.0, normalize_y=True))
    theirs.fit(train_x, train_y)
    assert ours.score(test_x, test_y) == pytest.approx(theirs.score(test_x, test_y), abs=0.02)
    mean, std = ours.predict(test_x, return_std=True)
    inside = np.abs(test_y - mean) < 1.96 * std
    assert 0.88 < inside.mean() < 0.99
    assert ours[-1].sample_y(ours[:-1].transform(test_x), 5).shape == (len(test_x), 5)
