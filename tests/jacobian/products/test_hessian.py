"""Products with the exact Hessian against differences of gradients; sums over batches, and what is refused."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.ground.data.inputs import Inputs
from lapwing.ground.data.sources import Data
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.products.hessian import hessian_product
from lapwing.jacobian.products.linearisation import Linearisation
from lapwing.jacobian.products.strategy import Strategy
from lapwing.likelihoods import Gaussian
from lapwing.linear.gauss_newton import GGNProduct
from tests.curvature import naive
from tests.curvature.naive import known
from tests.curvature.unchanged import unchanged
from tests.operators import check_symmetric
from tests.pairwise import in_turn

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

TWICE = ["mlp", "counts", "lenet", "layer_norm", "called_twice", "tied", "bare_parameter", "unet", "tagger"]
TWICE += ["batch_norm", "cross_attention", "lstm", "reparametrised"]


def differences(name: str, directions: Tensor) -> Tensor:
    """The Hessian along some directions ``[d, k]``: central differences of the gradient of the module's own loss."""
    case = known(name)
    model = copy.deepcopy(case.case.model)
    params = [value for value in model.parameters() if value.requires_grad]
    weights = nn.utils.parameters_to_vector(params).detach()

    def gradient(at: Tensor) -> Tensor:
        nn.utils.vector_to_parameters(at, params)
        f = case.case.likelihood.canonical(naive.call(model, case.case.inputs))
        y = case.case.likelihood.canonical_targets(f, case.case.targets)
        return naive.gradient(case.case.likelihood.nll(f, y).sum(), params)

    steps = 1e-5 * directions.mT
    return torch.stack([(gradient(weights + step) - gradient(weights - step)) / 2e-5 for step in steps], dim=1)


class Read(list[tuple[Inputs, Tensor]]):
    """Batches that count how often they are read."""

    readings = 0

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor]]:
        self.readings += 1
        return super().__iter__()


@pytest.mark.parametrize(("name", "strategy"), in_turn(TWICE, ("traced", "autodiff"), whole=("mlp", "lenet", "tagger")))
@pytest.mark.no_cover
def test_products_with_the_hessian(name: str, strategy: Strategy) -> None:
    case = known(name)
    data = Read([(case.case.inputs, case.case.targets)])
    operator = hessian_product(replace(case.model, source=Data(data, like=case.network.like)), strategy)
    block = torch.randn(case.network.size, 7, dtype=torch.float64)
    with unchanged(case.case.model):
        product, adjoint = operator @ block, operator.T @ block
    torch.testing.assert_close(product, differences(name, block), rtol=1e-5, atol=1e-6)
    assert torch.equal(adjoint, product) and operator.dtype == torch.float64
    assert data.readings == (1 if strategy == "traced" else 2), "what was recorded is kept"


def test_products_are_sums_over_batches() -> None:
    case = known("mlp")
    x, y = case.case.inputs, case.case.targets
    assert isinstance(x, Tensor)
    data = Data([(x[:3], y[:3]), (x[3:], y[3:])], like=case.network.like)
    hessian = differences("mlp", torch.eye(case.network.size, dtype=torch.float64))
    for parts, whole in (
        (hessian_product(replace(case.model, source=data)), hessian),
        (GGNProduct(Linearisation(replace(case.model, source=data))), naive.ggn(case)),
    ):
        torch.testing.assert_close(parts.dense(), whole, rtol=1e-5, atol=1e-6)
        check_symmetric(parts)


def test_the_hessian_through_a_weight_norm_is_that_of_its_formula() -> None:
    """PyTorch's own second derivative of the weight norm is wrong."""
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 1)).double()
    x, y = torch.tensor([[1.0, -2.0], [0.5, 3.0]]).double(), torch.zeros(2, 1, dtype=torch.float64)
    network = Network.of(layer)
    found = hessian_product(naive.surveyed(network, Gaussian(), x, y)).dense()

    def loss(weights: Tensor) -> Tensor:
        bias, g, v = weights[0], weights[1], weights[2:]
        return 0.5 * (y[:, 0] - x @ (g * v / v.square().sum().sqrt()) - bias).square().sum()

    assert network.names == ("bias", "parametrizations.weight.original0", "parametrizations.weight.original1")
    torch.testing.assert_close(found, torch.autograd.functional.hessian(loss, network.weights))


def test_rows_without_a_gradient_have_no_curvature() -> None:
    """Forward mode would move the padding row of an embedding."""
    model = nn.Sequential(nn.Embedding(3, 2, padding_idx=0), nn.Flatten(), nn.Tanh(), nn.Linear(4, 1)).double()
    x, y = torch.tensor([[0, 1], [2, 0]]), torch.zeros(2, 1, dtype=torch.float64)
    network = Network.of(model)
    hessian = hessian_product(naive.surveyed(network, Gaussian(), x, y)).dense()
    torch.testing.assert_close(hessian, hessian.mT)
    assert not hessian[:2].any() and hessian[2:6].any()


def test_columns_and_examples_are_cut_to_the_budget() -> None:
    """A branch on the numbers cannot be recorded: every column goes through the network again."""

    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))

        def forward(self, x: Tensor) -> Tensor:
            if torch._C._functorch.maybe_current_level() is not None:
                examples.append(len(x))
            return self.layers(x) if float(x.sum()) < torch.inf else x[:, :2]

    torch.manual_seed(0)
    examples = list[int]()
    model, x = Branching().double(), torch.randn(12, 2, dtype=torch.float64)
    y = model(x).argmax(-1).detach()
    given = naive.surveyed(Network.of(model), lw.Categorical(), x, y)
    whole = hessian_product(given, "traced").dense()
    example = 8 * sum(given.survey.floats)
    for room in (5, 24):
        examples.clear()
        found = hessian_product(given, "traced", budget=room * example).dense()
        attempt, *mapped = [n for n in examples if n > 3]  # at recording, then columns
        size = max(mapped)
        assert attempt == size <= room
        assert len(mapped) == 12 // size * -(-given.network.size // (room // size))
        torch.testing.assert_close(found, whole)
