"""The distance from the nearest class, against SciPy and scikit-learn."""

from __future__ import annotations

import numpy as np
import torch
from scipy.spatial.distance import mahalanobis
from torch import nn

from lapwing.baselines import Mahalanobis, Task
from lapwing.baselines.mahalanobis import MahalanobisScore
from tests.posterior_cases import labels, mlp, normal

F, Y = normal(60, 4) @ normal(4, 4, seed=3), labels(60, classes=3)


def test_it_is_the_smallest_distance_of_scipy() -> None:
    score = MahalanobisScore.of_classes(F, Y)
    features = F.numpy()
    means = np.stack([features[Y.numpy() == label].mean(0) for label in range(3)])
    apart = features - means[Y.numpy()]
    precision = np.linalg.inv(apart.T @ apart / len(features))
    new = normal(7, 4, seed=9)
    expected = [min(mahalanobis(each, mean, precision) ** 2 for mean in means) for each in new.numpy()]
    np.testing.assert_allclose(score.distances(new).numpy(), expected, rtol=1e-9)


def test_directions_without_spread_are_left_out_and_classes_may_be_missing() -> None:
    flat = torch.cat([F, F[:, :1], torch.ones(60, 1, dtype=torch.float64)], 1)
    found = MahalanobisScore.of_classes(flat, 5 * Y)
    expected = MahalanobisScore.of_classes(F, Y)
    assert found.whitening.shape == (6, 4)
    torch.testing.assert_close(found.distances(flat), expected.distances(F), rtol=1e-8, atol=1e-8)


def test_predictions_have_it_of_the_features() -> None:
    model = mlp(3).eval()
    x = normal(60, 3)
    predictor = Mahalanobis().fit(Task(model, (x, Y)))
    features = nn.Sequential(model[0], model[1])(x).detach()
    expected = MahalanobisScore.of_classes(features, Y).distances(features)
    torch.testing.assert_close(predictor.predict(x).strangeness, expected)
