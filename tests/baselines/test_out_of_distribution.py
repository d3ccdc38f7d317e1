"""Networks with a score that tells inputs from elsewhere."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing import metrics
from lapwing.baselines import Energy, Mahalanobis, NearestNeighbours, PlainNetwork, Task
from lapwing.baselines.out_of_distribution import outputs_and_features
from lapwing.ground.errors import ShapeError, UnsupportedError
from lapwing.likelihoods import Categorical, Gaussian
from tests.posterior_cases import labels, mlp, normal, refused

X, Y = normal(40, 3), labels(40, classes=2)
ENTRIES = [Energy(), Mahalanobis(), NearestNeighbours(3)]
every = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)


@every
def test_evaluation_tells_other_inputs_by_the_score(entry: Energy | Mahalanobis | NearestNeighbours) -> None:
    model = mlp()
    predictor = entry.fit(Task(model, (X, Y)))
    others = 3 * normal(30, 3, seed=5)
    scores = lw.evaluate(predictor, (X, Y), ood=others)
    told = metrics.auroc(predictor.predict(X).strangeness, predictor.predict(others).strangeness)
    assert scores["ood_auroc"] == told
    plain = lw.evaluate(PlainNetwork(model), (X, Y), ood=others)
    assert scores["nll"] == plain["nll"] and scores["ood_auroc"] != plain["ood_auroc"]


def test_features_are_what_the_last_linear_layer_takes() -> None:
    model = mlp().eval()
    outputs, features = outputs_and_features(PlainNetwork(model), X)
    torch.testing.assert_close(features, torch.tanh(model[0](X)).detach())
    assert torch.equal(outputs, model(X).detach())
    assert not any(part._forward_pre_hooks for part in model.modules())


class Tokens(nn.Module):
    """A linear layer at each of several positions."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)


@every
def test_positions_have_a_score_each(entry: Energy | Mahalanobis | NearestNeighbours) -> None:
    x = torch.randn(20, 4, 3)
    y = labels(20, 4, classes=2)
    y[0, 0] = -100
    predictor = entry.fit(Task(Tokens(), (x, y), likelihood=Categorical(event_dim=1)))
    assert predictor.predict(x[:5]).strangeness.shape == (5, 4)


@every
def test_targets_are_classes(entry: Energy | Mahalanobis | NearestNeighbours) -> None:
    with refused(UnsupportedError, "the Categorical likelihood"):
        entry.fit(Task(mlp(), (X, X[:, :2]), likelihood=Gaussian()))


def test_a_network_without_a_linear_layer_is_told() -> None:
    model = nn.Sequential(nn.Conv1d(3, 2, 1), nn.Flatten())
    with refused(UnsupportedError, "a network that ends with a linear layer"):
        Mahalanobis().fit(Task(model, (torch.randn(20, 3, 1), Y[:20])))
    with pytest.raises((ShapeError, lw.LapwingError)):
        Mahalanobis().fit(Task(model, (torch.randn(20, 3), Y[:20])))
