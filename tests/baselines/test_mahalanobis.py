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


def test_the_rounding_of_a_network_in_float32_is_no_direction() -> None:
    """Two features of which four are made in float32, and by which inputs from far away are not to be told apart."""
    first, last = nn.Linear(2, 4), nn.Linear(4, 3)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.7, 0.3], [0.1, -0.9]]))
        first.bias.copy_(torch.tensor([3.0, 5.0, 1.0, 2.0]))
    x, new = normal(60, 2).float(), 30 * normal(6, 2, seed=5).float()
    model = nn.Sequential(first, last)
    found = Mahalanobis().fit(Task(model, (x, Y))).predict(new).strangeness
    expected = MahalanobisScore.of_classes(x.double(), Y).distances(new.double())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)


def test_predictions_have_it_of_the_features() -> None:
    model = mlp(3).eval()
    x = normal(60, 3)
    predictor = Mahalanobis().fit(Task(model, (x, Y)))
    features = nn.Sequential(model[0], model[1])(x).detach()
    expected = MahalanobisScore.of_classes(features, Y).distances(features)
    torch.testing.assert_close(predictor.predict(x).strangeness, expected)
