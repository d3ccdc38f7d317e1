"""The diagonal of the curvature against the naive Jacobian."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import lapwing as lw
from lapwing.curvature.diagonal import DiagonalSum
from lapwing.curvature.kinds import GGN, EmpiricalFisher
from lapwing.curvature.sweep import sweep
from lapwing.ground.errors import NumericalError
from lapwing.jacobian.layers.base import Explicit
from lapwing.jacobian.network.network import Network
from lapwing.linalg import Diagonal
from tests.cases import CASES
from tests.curvature import naive
from tests.curvature.naive import known
from tests.posterior_cases import refused


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_diagonal_of_the_gauss_newton_matrix(name: str) -> None:
    case = known(name)
    total = DiagonalSum(case.network)
    sweep(case.model, GGN(), total)
    held = total.result()
    assert isinstance(held.operator, Diagonal) and held.partition == ()
    torch.testing.assert_close(held.operator.values, naive.ggn(case).diagonal(), rtol=1e-9, atol=1e-10)


def test_it_is_the_sum_of_squared_gradients_for_the_empirical_fisher() -> None:
    case = known("lenet")
    total = DiagonalSum(case.network)
    sweep(case.model, EmpiricalFisher(), total)
    score = case.case.likelihood.score(case.outputs, case.case.targets)
    gradients = torch.einsum("nc,ncd->nd", score, case.jacobian)
    torch.testing.assert_close(total.result().operator.diagonal(), gradients.square().sum(0))


def test_squares_that_overflow_are_refused() -> None:
    x, y = 1e20 * torch.randn(5, 3), torch.zeros(5, dtype=torch.long)
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.mul_(1e-20)
    with refused(NumericalError, "finite numbers"):
        lw.Laplace(lw.Categorical(), structure=lw.Diagonal()).fit(model, (x, y))
    posterior = lw.Laplace(lw.Categorical(), structure=lw.Diagonal()).fit(model.double(), (x.double(), y))
    assert posterior.effective_dimension() == pytest.approx(8, abs=2)


def test_single_weights_have_their_own_entries() -> None:
    case = known("mlp")
    index = torch.tensor([0, 3, 40])
    network = Network(case.case.model, case.network.names, index)
    total = DiagonalSum(network)
    sweep(replace(case.model, network=network), GGN(), total)
    torch.testing.assert_close(total.result().operator.diagonal(), naive.ggn(case).diagonal()[index])


def test_a_diagonal_in_half_precision_goes_on_growing() -> None:
    """In bfloat16 a sum of ones would end at 256."""
    model = nn.Linear(2, 1, bias=False).bfloat16()
    total = DiagonalSum(Network.of(model))
    for _ in range(1000):
        total.add(iter([Explicit("weight", None, torch.ones(1, 1, 2, dtype=torch.bfloat16))]))
    assert total.result().operator.diagonal().tolist() == [1000.0, 1000.0]
    posterior = lw.Laplace(lw.Gaussian(), structure=lw.Diagonal()).fit(model, (torch.ones(1, 2), torch.zeros(1, 1)))
    assert posterior.sample(3).dtype == posterior.predict(torch.ones(1, 2)).mean.dtype == torch.bfloat16
