"""What holds of every baseline: it predicts alike at every call and after a pickle, and leaves all else alone."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.baselines import Entry, Task
from lapwing.evaluation.evaluate import Predictor
from tests.curvature.unchanged import unchanged
from tests.posterior_cases import labels, normal, seeded
from tests.without_double import without_double

X, Y = normal(40, 3), labels(40, classes=2)
NEW = normal(7, 3, seed=4)


def network() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)))


def another(seed: int) -> nn.Module:
    with torch.device("cpu"):
        return network()


ENTRIES: dict[str, Callable[[], Entry]] = {
    "dropout": lambda: lw.baselines.MonteCarloDropout(3),
    "ensemble": lambda: lw.baselines.DeepEnsemble(another, members=2),
    "SWAG": lambda: lw.baselines.SWAG(epochs=2, rank=2, samples=3),
    "mean field": lambda: lw.baselines.MeanField(2, samples=3),
    "energy": lambda: lw.baselines.Energy(),
    "Mahalanobis": lambda: lw.baselines.Mahalanobis(),
    "nearest neighbours": lambda: lw.baselines.NearestNeighbours(),
    "conformal sets": lambda: lw.baselines.ConformalSets(),
    "vector scaling": lambda: lw.baselines.VectorScaling(),
    "matrix scaling": lambda: lw.baselines.MatrixScaling(),
}
every = pytest.mark.parametrize("name", ENTRIES)


def task_of(model: nn.Module) -> Task:
    outputs = lw.baselines.PlainNetwork(model).outputs(X)
    answers = (outputs + outputs.std() * normal(40, 2, seed=8)).argmax(1)
    return Task(model, (X, Y), validation=(X, answers), generator=torch.Generator().manual_seed(2))


def fitted(name: str, model: nn.Module) -> Predictor:
    return ENTRIES[name]().fit(task_of(model))


@every
def test_the_network_and_the_source_of_randomness_are_left_as_they_were(name: str) -> None:
    model = network()
    state = torch.get_rng_state()
    with unchanged(model):
        predictor = fitted(name, model)
        predictor.predict(NEW)
        lw.evaluate(predictor, (X, Y), ood=NEW)
    assert torch.equal(torch.get_rng_state(), state) or name == "ensemble"  # whose factory is the user's own


@every
def test_it_predicts_alike_again_and_after_a_pickle(name: str) -> None:
    predictor = fitted(name, network())
    expected = predictor.predict(NEW).probs
    assert torch.equal(predictor.predict(NEW).probs, expected)
    assert torch.equal(pickle.loads(pickle.dumps(predictor)).predict(NEW).probs, expected)
    assert torch.equal(fitted(name, network()).predict(NEW).probs, expected)
    torch.testing.assert_close(expected.sum(-1), torch.ones(7, dtype=torch.float64))


@every
def test_modes_of_the_user_change_nothing(name: str) -> None:
    expected = fitted(name, network()).predict(NEW).probs
    task = task_of(network())
    with torch.inference_mode(), torch.autocast("cpu"), torch.device("meta"):
        found = ENTRIES[name]().fit(task).predict(NEW).probs
    assert torch.equal(found, expected)


@every
def test_a_device_without_double_gives_the_answers_of_one_that_has_it(name: str) -> None:
    model = network().float()
    x = X.float()
    new = NEW.float()
    outputs = lw.baselines.PlainNetwork(model).outputs(x)
    answers = (outputs + outputs.std() * normal(40, 2, seed=8).float()).argmax(1)
    entry = lw.baselines.DeepEnsemble([model, model]) if name == "ensemble" else ENTRIES[name]()

    def found() -> list[Tensor]:
        task = Task(model, (x, Y), validation=(x, answers), generator=torch.Generator().manual_seed(2))
        p = entry.fit(task).predict(new)
        return [p.probs] if p.strangeness is None else [p.probs, p.strangeness]

    expected = found()
    with without_double():
        without = found()
    for mine, theirs in zip(without, expected, strict=True):
        torch.testing.assert_close(mine.float(), theirs.float(), rtol=1e-3, atol=1e-5)
