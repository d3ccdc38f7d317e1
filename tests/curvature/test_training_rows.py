"""The rows that the training data have in function space."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.curvature.last_layer.features import FeatureRows
from lapwing.curvature.tangent_kernel import TangentKernel
from lapwing.curvature.training_rows import InputRows
from lapwing.ground.data.inputs import concatenated
from lapwing.jacobian.limits import LIMITS, Limits
from lapwing.posteriors import FunctionPosterior
from tests.checker import unchecked
from tests.posterior_cases import Problem, labels, normal, problem, seeded


def fit(case: Problem) -> FunctionPosterior:
    recipe = lw.Laplace(case.likelihood, weights=lw.LastLayer(), structure=lw.Full(view="functions"))
    posterior = case.fit(recipe)
    assert isinstance(posterior, FunctionPosterior)
    return posterior


def fit_any(model: nn.Module, x: Tensor, weights: lw.LastLayer | lw.All | lw.Names) -> FunctionPosterior:
    recipe = lw.Laplace(lw.Categorical(), weights=weights, structure=lw.Full(view="functions"))
    posterior = recipe.fit(model, (x, labels(len(x), classes=2)))
    assert isinstance(posterior, FunctionPosterior)
    return posterior


@pytest.mark.parametrize("limits", [Limits(training=1), LIMITS], ids=["single", "all"])
@pytest.mark.parametrize("name", ["gaussian", "images", "tokens", "pixels"])
def test_features_and_inputs_know_the_same_rows(name: str, limits: Limits) -> None:
    posterior = fit(problem(name))
    model, kept = replace(posterior.model, limits=limits), posterior.rows
    assert isinstance(kept, FeatureRows)
    read = InputRows(kept.cotangents, concatenated([batch.inputs for batch in model.data]))
    d, kernel = posterior.network.size, TangentKernel(model)
    variance, m = torch.linspace(0.5, 2.0, d, dtype=torch.float64), len(kept)
    torch.testing.assert_close(kernel.training_grams(kept, [variance]), kernel.training_grams(read, [variance]))
    block, seen = normal(d, 2), normal(m, 2)
    torch.testing.assert_close(kept.push(model, block), read.push(model, block))
    torch.testing.assert_close(kept.pull(model, seen), read.pull(model, seen))
    torch.testing.assert_close(torch.sum(kept.push(model, block) * seen), torch.sum(block * kept.pull(model, seen)))


class WideAndDeep(nn.Module):
    """The last layer sees the inputs, some of them moved, beside a hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([self.body(x).tanh(), x[:, 1:]], 1))


def test_inputs_are_no_features() -> None:
    """What is kept as features goes into files: never the inputs themselves, as a last layer sees them or scaled."""
    scaled = nn.Sequential(nn.BatchNorm1d(3, affine=False), nn.Linear(3, 2))
    for build in (lambda: nn.Linear(3, 2), WideAndDeep, lambda: scaled):
        posterior = fit_any(seeded(build), normal(7, 3), lw.LastLayer())
        assert posterior.survey.head and isinstance(posterior.rows, InputRows)
    only = fit_any(seeded(lambda: nn.Linear(3, 2)), normal(7, 3), lw.Names("weight"))
    assert only.survey.head and isinstance(only.rows, InputRows)
    deep = fit_any(seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))), normal(7, 3), lw.All())
    assert isinstance(deep.rows, InputRows)


def test_features_of_another_layer_do_not_fit() -> None:
    posterior = fit(problem("tokens"))
    kept, model = posterior.rows, posterior.model
    assert isinstance(kept, FeatureRows) and kept.misfit(model) is None
    known = kept.head.a
    for features in (known[:, :, 1:], known[1:], known[..., 1:], known[:, 0]):
        with unchecked():
            other = replace(kept, head=replace(kept.head, a=features))
            assert f"{list(features.shape)}" in str(other.misfit(model))
    renamed = replace(kept, head=replace(kept.head, weight="another.weight"))
    assert renamed.misfit(model) is not None
