"""Features are the dense Jacobian times the changes, by rows and by columns, and J V Jᵀ beside them."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
from torch import nn

import lapwing as lw
from lapwing.curvature.tangent_features import Pairs, TangentFeatures, pair_rows
from lapwing.ground.data.inputs import take
from lapwing.jacobian.limits import Limits
from lapwing.jacobian.network.network import Network
from tests.curvature.naive import surveyed
from tests.modules import Squared
from tests.posterior_cases import PROBLEMS, WEIGHTS, Linearised, Problem, labels, normal, problem, seeded


def setting(case: Problem, columns: int, weights: str = "all") -> tuple[TangentFeatures, Linearised]:
    posterior = case.fit(lw.Laplace(case.likelihood, structure=lw.Diagonal(), weights=WEIGHTS[weights]))
    network, changes = posterior.network, normal(posterior.network.size, columns, seed=5)
    return TangentFeatures(posterior.model, changes), Linearised(case, network)


@pytest.mark.parametrize(
    ("name", "weights"), [*((name, "all") for name in PROBLEMS), *(("images", part) for part in WEIGHTS)]
)
def test_are_the_jacobian_times_the_changes(name: str, weights: str) -> None:
    case = problem(name)
    few, dense = setting(case, 1, weights)
    many = replace(few, changes=normal(few.model.network.size, 40, seed=6))
    assert not few.by_rows and many.by_rows
    variances = (normal(few.model.network.size, seed=7).exp(), torch.full((few.model.network.size,), 0.3).double())
    mean, jacobian = dense.new
    for one in (few, many, replace(few, variances=variances)):
        found = one.of(case.new)
        torch.testing.assert_close(found.mean, mean)
        torch.testing.assert_close(found.values, jacobian @ one.changes)
        assert len(found.covariances) == len(one.variances)
        for covariance, variance in zip(found.covariances, one.variances, strict=True):
            torch.testing.assert_close(covariance, (jacobian * variance) @ jacobian.mT)
    single = replace(many, model=replace(many.model, limits=Limits(training=1)))
    assert single.chunk == 1
    torch.testing.assert_close(single.of(case.new).values, jacobian @ many.changes)


def test_are_in_double_whatever_the_network_is_in() -> None:
    network = Network.of(nn.Linear(3, 2))
    x, changes = normal(5, 3).float(), normal(8, 4).float()
    one = TangentFeatures(surveyed(network, lw.Gaussian(), x), changes, (torch.ones(8),))
    found = one.of(x)
    assert found.mean.dtype == torch.float32
    assert found.values.dtype == found.covariances[0].dtype == torch.float64


def test_an_operation_without_forward_mode_is_named_and_gone_around(caplog: pytest.LogCaptureFixture) -> None:
    x, found = normal(7, 3), []
    for custom in (False, True):
        model = seeded(lambda custom=custom: Squared(custom))
        network = Network.of(model)
        one = TangentFeatures(surveyed(network, lw.Categorical(), x), normal(network.size, 2, seed=3))
        assert not one.by_rows
        with caplog.at_level(logging.INFO, logger="lapwing"):
            found.append(one.of(x).values)
        assert ("cannot push columns forward" in caplog.text) == custom
    assert "autograd.Function" in caplog.text
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize(
    ("name", "weights"), [("images", "all"), ("images", "subnetwork"), ("tokens", "all"), ("pixels", "last-layer")]
)
def test_rows_are_those_of_the_dense_jacobian(name: str, weights: str) -> None:
    case = problem(name)
    posterior = case.fit(lw.Laplace(case.likelihood, structure=lw.Diagonal(), weights=WEIGHTS[weights]))
    jacobian = Linearised(case, posterior.network).jacobian(case.x).flatten(1, -2)
    examples = labels(9, classes=len(case.x), seed=3)
    outputs = labels(9, classes=jacobian.shape[1], seed=4)
    chosen = Pairs(take(case.x, examples), examples, outputs)
    model = posterior.model
    expected = jacobian[examples, outputs]
    torch.testing.assert_close(pair_rows(model, chosen), expected)
    model = replace(model, limits=Limits(training=1))
    torch.testing.assert_close(pair_rows(model, chosen), expected)
    part = torch.tensor([7, 2])
    assert len(chosen.at(part)) == 2
    torch.testing.assert_close(pair_rows(model, chosen.at(part)), expected[part])


def test_rows_of_half_precision_are_the_products_of_their_factors_to_the_digits_of_single() -> None:
    """The rows of a layer's weights are ``g aᵀ``, of rank one: rounded to bfloat16 they would be off by 2⁻⁹."""
    x = normal(4, 5).bfloat16()
    network = Network.of(seeded(lambda: nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))).bfloat16())
    chosen = Pairs(x, torch.arange(4), torch.tensor([0, 1, 1, 0]))
    rows = pair_rows(surveyed(network, lw.Categorical(), x), chosen)
    assert rows.dtype == torch.float32
    values = torch.linalg.svdvals(rows[:, network.layout.slices["0.weight"]].view(4, 6, 5))
    assert float((values[:, 1] / values[:, 0]).max()) < 1e-6
