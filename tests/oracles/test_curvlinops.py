"""The same matrices by curvlinops 3.0.1, an independent implementation through automatic differentiation.

Conventions: with ``reduction="sum"`` curvlinops sums over the data as lapwing does. Its squared error has no factor one
half, so it corresponds to a noise precision of 2. Its Kronecker factors are scaled as here: the gradients are summed,
the inputs averaged over examples and positions.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from lapwing.curvature.blocked import BlockedCurvature
from lapwing.curvature.dense import DenseSum
from lapwing.curvature.diagonal import DiagonalSum
from lapwing.curvature.kfac import KroneckerSum
from lapwing.curvature.kinds import GGN, Curvature, EmpiricalFisher
from lapwing.curvature.sweep import Accumulator, sweep
from lapwing.ground.data.sources import Data
from lapwing.jacobian.model import Model
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.survey import find_layers
from lapwing.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from lapwing.linalg import BlockDiagonal, Kronecker
from tests.pairwise import in_turn

curvlinops = pytest.importorskip("curvlinops")

N = 6


class Tokens(nn.Module):
    """A linear layer at several positions of an example, then one answer for all."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 4), nn.Linear(4, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(torch.tanh(self.inner(x)).mean(1))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(3, 2, 2, dilation=(1, 2), padding=(0, 1), bias=False),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(12, 3),
    )


NETWORKS = {"mlp": (mlp, (4,)), "convolutions": (convolutions, (2, 5, 5)), "tokens": (Tokens, (2, 3))}

LOSSES: dict[str, tuple[nn.Module, Likelihood]] = {
    "classes": (nn.CrossEntropyLoss(reduction="sum"), Categorical()),
    "labels": (nn.BCEWithLogitsLoss(reduction="sum"), Bernoulli()),
    "numbers": (nn.MSELoss(reduction="sum"), Gaussian(2.0)),
}


class Pair:
    """One network and its data, for both sides."""

    def __init__(self, network: str, loss: str) -> None:
        build, shape = NETWORKS[network]
        self.model = build().double()
        self.loss, self.likelihood = LOSSES[loss]
        x = torch.randn(N, *shape, dtype=torch.float64)
        y = {
            "classes": torch.randint(0, 3, (N,)),
            "labels": torch.randint(0, 2, (N, 3)).double(),
            "numbers": torch.randn(N, 3, dtype=torch.float64),
        }[loss]
        self.batches = [(x[:4], y[:4]), (x[4:], y[4:])]

    def ours(self, total: Accumulator | None, curvature: Curvature | None = None) -> BlockedCurvature:
        network = Network.of(self.model)
        total = total or DenseSum(network)
        survey = find_layers(network, self.batches[0][0])
        data = Data(self.batches, like=network.like)
        sweep(Model(network, survey, self.likelihood, data), curvature or GGN(), total)
        return total.result()

    def theirs(self, kind: str, **options: Any) -> Any:
        model = copy.deepcopy(self.model)
        return getattr(curvlinops, kind)(model, self.loss, list(model.parameters()), self.batches, **options)


@pytest.mark.parametrize(("network", "loss"), list(itertools.product(NETWORKS, LOSSES)))
def test_the_gauss_newton_matrix_and_its_diagonal(network: str, loss: str) -> None:
    pair = Pair(network, loss)
    dense = matrix(pair.theirs("GGNLinearOperator"))
    torch.testing.assert_close(pair.ours(None).operator.dense(), dense)
    diagonal = pair.ours(DiagonalSum(Network.of(pair.model))).operator.diagonal()
    torch.testing.assert_close(diagonal, dense.diagonal())


@pytest.mark.parametrize("loss", ["classes", "numbers"])
def test_the_empirical_fisher(loss: str) -> None:
    pair = Pair("convolutions", loss)
    dense = matrix(pair.theirs("EFLinearOperator"))
    torch.testing.assert_close(pair.ours(None, EmpiricalFisher()).operator.dense(), dense)


@pytest.mark.parametrize(
    ("factors", "loss"), in_turn(itertools.product(NETWORKS, ["joint", "separate"], ["expand", "reduce"]), list(LOSSES))
)
def test_kronecker_factored_curvature(
    factors: tuple[str, Literal["joint", "separate"], Literal["expand", "reduce"]], loss: str
) -> None:
    network, bias, sharing = factors
    pair = Pair(network, loss)
    theirs = pair.theirs(
        "KFACLinearOperator", fisher_type="type-2", kfac_approx=sharing, separate_weight_and_bias=bias == "separate"
    )
    held = pair.ours(KroneckerSum(Network.of(pair.model), sharing, bias))
    torch.testing.assert_close(held.operator.dense(), matrix(theirs))
    assert isinstance(held.operator, BlockDiagonal)
    for names, block in zip(held.partition, held.operator.blocks, strict=True):
        owner, _, kind = names[0].rpartition(".")
        assert isinstance(block, Kronecker)
        torch.testing.assert_close(block.left.matrix.squeeze(0), theirs._gradient_covariances[owner])
        if kind == "weight":
            inputs = block.scale * block.right.matrix.squeeze(0)
            torch.testing.assert_close(inputs, theirs._input_covariances[owner])


def matrix(operator: Any) -> Tensor:
    """One product with the identity."""
    return operator @ torch.eye(operator.shape[1], dtype=torch.float64)
