"""Ensembles: mixtures of what their members predict."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lapwing.baselines import DeepEnsemble, Ensemble, PlainNetwork, Task
from lapwing.ground.errors import ConfigError
from lapwing.likelihoods import Gaussian, HeteroscedasticGaussian
from lapwing.predictive import Classification, Regression
from tests.checker import unchecked
from tests.posterior_cases import mlp, normal, refused, seeded

X = normal(6, 3)


def member(seed: int) -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), seed)


def test_probabilities_are_averaged_and_have_no_standard_error() -> None:
    models = [member(seed) for seed in range(3)]
    p = Ensemble(models).predict(X)
    assert isinstance(p, Classification)
    alone = torch.stack([PlainNetwork(model).predict(X).probs for model in models])
    torch.testing.assert_close(p.probs, alone.mean(0), rtol=1e-14, atol=0)
    assert p.stderr is None


@pytest.mark.parametrize("likelihood", [Gaussian(4.0), HeteroscedasticGaussian()], ids=["one noise", "each its own"])
def test_real_targets_have_the_moments_of_the_mixture(likelihood: Any) -> None:
    models = [member(seed) for seed in range(4)]
    p = Ensemble(models, likelihood=likelihood).predict(X)
    parts = [PlainNetwork(model, likelihood).predict(X) for model in models]
    means = torch.stack([part.mean for part in parts])
    variances = torch.stack([part.variance for part in parts])
    second_moments = (variances + means.square()).mean(0)
    assert isinstance(p, Regression)
    torch.testing.assert_close(p.mean, means.mean(0), rtol=1e-12, atol=0)
    torch.testing.assert_close(p.variance, second_moments - means.mean(0).square(), rtol=1e-10, atol=0)


def test_a_factory_trains_as_many_as_are_wanted_from_seeds_of_the_task() -> None:
    seeds: list[int] = []

    def train(seed: int) -> nn.Module:
        seeds.append(seed)
        return member(seed)

    generator = torch.Generator().manual_seed(0)
    fitted = DeepEnsemble(train, members=3).fit(Task(mlp(), (X, X), generator=generator))
    assert len(fitted.models) == len(set(seeds)) == 3
    assert torch.equal(fitted.outputs(X).values[1], PlainNetwork(member(seeds[1])).outputs(X))
    assert len(DeepEnsemble(train).fit(Task(mlp(), (X, X))).models) == 5


def test_of_given_networks_some_may_be_taken() -> None:
    models = [member(seed) for seed in range(4)]
    assert DeepEnsemble(models, members=2).fit(Task(models[0], (X, X))).models == tuple(models[:2])


@pytest.mark.parametrize(
    ("models", "members", "message"),
    [
        ([], None, "at least one network"),
        (nn.Linear(3, 2), None, "one nn.Module"),
        ([nn.Linear(3, 2)], 2, "2 networks. Got 1"),
        ([nn.Linear], None, "the class Linear"),
        ([nn.Linear(3, 2)], 0, "members"),
    ],
)
def test_what_is_no_ensemble_is_told(models: Any, members: int | None, message: str) -> None:
    with unchecked(), refused(ConfigError, message):
        DeepEnsemble(models, members)


def test_a_factory_that_returns_no_network_is_told() -> None:
    with unchecked(), refused(ConfigError, "a network that is an nn.Module. Got a NoneType"):
        DeepEnsemble(lambda seed: None, 2).fit(Task(mlp(), (X, X)))


def test_a_factory_that_returns_the_same_network_again_is_told() -> None:
    model = mlp()
    with refused(ConfigError, "3 different networks. Got 1"):
        DeepEnsemble(lambda seed: model, 3).fit(Task(mlp(), (X, X)))
