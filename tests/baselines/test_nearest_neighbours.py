"""The distance from the nearest training examples, against scikit-learn."""

from __future__ import annotations

import pytest
import torch

from lapwing.baselines import NearestNeighbours, Task
from lapwing.baselines.nearest_neighbours import NeighbourScore
from lapwing.ground.errors import ConfigError, TooLargeError
from tests.posterior_cases import labels, mlp, normal, refused

X, Y = normal(40, 3), labels(40, classes=2)


def test_it_is_that_of_scikit_learn() -> None:
    neighbors = pytest.importorskip("sklearn.neighbors")
    model = mlp().eval()
    predictor = NearestNeighbours(4).fit(Task(model, (X, Y)))
    new = normal(9, 3, seed=7)
    features = [torch.tanh(model[0](each)).detach() for each in (X, new)]
    units = [torch.nn.functional.normalize(each, dim=1) for each in features]
    distances, _ = neighbors.NearestNeighbors(n_neighbors=4).fit(units[0].numpy()).kneighbors(units[1].numpy())
    expected = torch.from_numpy(distances[:, -1])
    torch.testing.assert_close(predictor.predict(new).strangeness, expected, rtol=1e-9, atol=0)
    for held in (1, 80):
        found = NeighbourScore(units[0], 4).distances(features[1], held)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)


def test_a_training_example_is_its_own_first_neighbour() -> None:
    score = NeighbourScore(torch.nn.functional.normalize(X, dim=1), 1)
    assert float(score.distances(2 * X).max()) < 1e-7


def test_too_few_examples_and_too_many_features_are_told() -> None:
    with refused(ConfigError, "41 training examples. Got 40"):
        NearestNeighbours(41).fit(Task(mlp(), (X, Y)))
    with refused(TooLargeError, "features of the training examples of at most 1,000 bytes"):
        NearestNeighbours(max_bytes=1000).fit(Task(mlp(), (X, Y)))
    with refused(ConfigError, "neighbours of at least 1"):
        NearestNeighbours(0)
