"""The linearised network: products with its Gauss-Newton matrix against dense ones, by each strategy; their memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from lapwing.ground.data.sources import Data
from lapwing.ground.errors import MismatchError
from lapwing.jacobian.layers import capture
from lapwing.jacobian.model import Model
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.products.cache import WORKING
from lapwing.jacobian.products.hessian import hessian_product
from lapwing.jacobian.products.linearisation import Linearisation
from lapwing.jacobian.products.strategy import Strategy
from lapwing.jacobian.products.tracing.tracer import SHAPES
from lapwing.jacobian.survey import surveyed
from lapwing.likelihoods import Gaussian
from lapwing.linear.gauss_newton import GGNProduct, ggn_product
from tests.cases import CASES
from tests.curvature import naive
from tests.curvature.naive import known
from tests.curvature.unchanged import unchanged
from tests.meter import Meter
from tests.pairwise import in_turn, pairwise
from tests.posterior_cases import normal

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

STRATEGIES: list[Strategy] = ["explicit", "traced", "autodiff"]
UNRECORDED = ["branching"]


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        *((name, "explicit") for name in CASES),
        *in_turn(CASES, ("traced", "autodiff"), whole=("mlp", "lenet", "branching", "tied", "cross_attention")),
    ],
)
def test_products_with_the_gauss_newton_matrix(name: str, strategy: Strategy) -> None:
    case = known(name)
    operator = GGNProduct(Linearisation(case.model, strategy=strategy))
    block = torch.randn(case.network.size, 3, dtype=torch.float64)
    expected = naive.ggn(case) @ block
    with unchanged(case.case.model):
        product, again = operator @ block, operator @ block[:, :1]
    torch.testing.assert_close(product, expected, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(again, expected[:, :1], rtol=1e-9, atol=1e-10)
    assert operator.T is operator and operator.dtype == torch.float64
    kept = strategy == "explicit" or (strategy == "traced" and name not in UNRECORDED)
    assert bool(operator.model.cache.chunks) == kept


@pytest.mark.parametrize(
    ("name", "strategy", "affine"),
    pairwise(["mlp", "counts", "batch_norm", "unet", "branching", "tagger"], STRATEGIES, [True, False]),
)
def test_products_with_the_output_hessian_taken_elsewhere(name: str, strategy: Strategy, affine: bool) -> None:
    case = known(name)
    likelihood, weights = case.case.likelihood, case.network.weights
    base = GGNProduct(Linearisation(case.model, strategy=strategy))
    f, j = case.outputs, case.jacobian
    moved = weights + 0.3 * torch.randn(weights.shape, dtype=torch.float64)
    h = f + j @ (moved - weights) if affine else j @ moved
    b = likelihood.hessian(h, likelihood.canonical_targets(h, case.case.targets))
    expected = torch.einsum("pci,pcd,pdj->ij", j.flatten(0, -3), b.flatten(0, -3), j.flatten(0, -3))
    shifted = GGNProduct(base.model, moved, affine)
    block = torch.randn(len(weights), 3, dtype=torch.float64)
    for _ in range(2):
        torch.testing.assert_close(shifted @ block, expected @ block, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(base @ block, naive.ggn(case) @ block, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("columns", [1, 9])
@pytest.mark.parametrize("name", ["mlp", "batch_norm", "unet", "branching", "tagger"])
def test_the_rule_picks_a_strategy_that_is_right(name: str, columns: int) -> None:
    case = known(name)
    operator = GGNProduct(Linearisation(case.model))
    block = torch.randn(case.network.size, columns, dtype=torch.float64)
    assert operator.model.choose(columns) in ("explicit", "traced")
    torch.testing.assert_close(operator @ block, naive.ggn(case) @ block, rtol=1e-9, atol=1e-10)


class Counted:
    """Batches of one case, counted as they are read."""

    def __init__(self, *batches: tuple[Tensor, Tensor]) -> None:
        self.batches = batches
        self.readings = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.readings += 1
        return iter(self.batches)


def test_rows_are_made_for_as_many_examples_as_the_working_memory_holds() -> None:
    """What a chunk's passes need, and its explicit rows."""
    case, memory = known("mlp"), 2**17
    operator = GGNProduct(Linearisation(case.model, memory, "explicit"))
    cost, (each, beside), itemsize = operator.model.cost, case.survey.floats, case.network.like.element_size()
    examples = operator.model.chunk_size("explicit")
    taken = itemsize * (cost.cotangents * each + beside + cost.layers.held)
    rounded = itemsize * cost.cotangents
    assert examples > capture.FEW and cost.layers.held > each
    assert examples * taken <= memory // WORKING < (examples + 1) * (taken + rounded)


@pytest.mark.parametrize("strategy", ["explicit", "traced"])
@pytest.mark.parametrize(("memory", "kept"), [(2**31, True), (200, False)])
def test_what_fits_the_memory_is_kept(strategy: Strategy, memory: int, kept: bool) -> None:
    case = known("mlp")
    x, y = case.case.inputs, case.case.targets
    assert isinstance(x, Tensor)
    source = Counted((x[:3], y[:3]), (x[3:], y[3:]))
    data = Data(source, like=case.network.like)
    operator = GGNProduct(Linearisation(replace(case.model, source=data), memory, strategy))
    size = operator.model.chunk_size(strategy)
    assert data.examples == len(x)
    source.readings = 0
    block = torch.randn(case.network.size, 2, dtype=torch.float64)
    for reading in (1, 2, 3):
        torch.testing.assert_close(operator @ block, naive.ggn(case) @ block)
        assert source.readings == (1 if kept else reading)
    assert bool(operator.model.cache.chunks) == kept
    if kept:
        held = operator.model.cache.bytes
        assert 0 < held <= memory
    else:
        assert size < 4  # chunks fit what little there is


@pytest.mark.parametrize("strategy", ["explicit", "traced", "autodiff"])
def test_single_weights_can_be_uncertain(strategy: Strategy) -> None:
    case = known("lenet")
    index = torch.tensor([0, 40, 100])
    network = Network(case.case.model, case.network.names, index)
    operator = GGNProduct(Linearisation(surveyed(network, case.case.likelihood, case.data), strategy=strategy))
    torch.testing.assert_close(operator.dense(), naive.ggn(case)[index][:, index])


def test_automatic_differentiation_cuts_batches_and_columns_to_the_memory(generator: torch.Generator) -> None:
    """The sum over a batch of 90 examples with 40 columns: whole, and with memory for few of either."""
    model = nn.Sequential(nn.Linear(3, 60), nn.Tanh(), nn.Linear(60, 2)).double()
    network, x = Network.of(model), torch.randn(90, 3, generator=generator, dtype=torch.float64)
    given = surveyed(network, Gaussian(), Data((x, x[:, :2]), like=network.like))
    block = torch.randn(network.size, 40, generator=generator, dtype=torch.float64)
    found, most = [], []
    for memory in (2**31, 2**19):
        linear = Linearisation(given, memory, "autodiff")
        total = torch.zeros_like(block)
        with Meter() as meter:
            for chunk in linear.visit(40):
                assert memory == 2**31 or chunk.examples < 90
                total += ggn_product(chunk, lambda u: 2.0 * u, block)
        found.append(total)
        most.append(meter.most)
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)
    assert most[1] < 0.3 * most[0]


def wide(batches: tuple[int, ...], generator: torch.Generator) -> tuple[Model, Counted]:
    """A network with many inputs: one column is best recorded, a block best multiplied by layers."""
    network = Network.of(nn.Sequential(nn.Linear(20, 5), nn.Tanh(), nn.Linear(5, 4)).double())
    x = torch.randn(sum(batches), 20, generator=generator, dtype=torch.float64)
    source = Counted(*zip(x.split(batches), x[:, :4].split(batches), strict=True))
    return surveyed(network, Gaussian(), Data(source, like=network.like)), source


def test_a_column_and_a_block_are_each_kept_by_their_strategy(generator: torch.Generator) -> None:
    model, source = wide((10,), generator)
    operator = GGNProduct(Linearisation(model, recording=0))
    plain = GGNProduct(Linearisation(model, strategy="autodiff"))
    block = normal(model.network.size, 8)
    expected = plain @ block
    torch.testing.assert_close(operator @ block[:, :1], expected[:, :1], rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(operator @ block, expected, rtol=1e-9, atol=1e-10)
    before = source.readings
    torch.testing.assert_close(operator @ block[:, :1], expected[:, :1], rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(operator @ block, expected, rtol=1e-9, atol=1e-10)
    assert source.readings == before and set(operator.model.cache.chunks) == {"traced", "explicit"}


def test_what_is_at_hand_serves_where_the_better_strategy_would_push_it_out(generator: torch.Generator) -> None:
    model, _ = wide((10,), generator)
    block = normal(model.network.size, 8)
    roomy = Linearisation(model, recording=0)
    expected = [GGNProduct(roomy) @ columns for columns in (block, block[:, :1])]
    taken = sum(size for _, size in roomy.cache.chunks["explicit"])
    tight = Linearisation(model, taken * 8 // 7 + 64, recording=0)
    assert (roomy.choose(1), tight.choose(1)) == ("traced", "traced")
    found = [GGNProduct(tight) @ columns for columns in (block, block[:, :1])]
    assert tight.choose(1) == "explicit" and set(tight.cache.chunks) == {"explicit"}
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


def test_batches_of_many_shapes_are_kept(generator: torch.Generator) -> None:
    """As padded text has them: those beyond the shapes that are recorded are kept as they are."""
    lengths = tuple(range(1, SHAPES + 3))
    model, source = wide(lengths, generator)
    operator, plain = (GGNProduct(Linearisation(model, strategy=strategy)) for strategy in ("traced", "autodiff"))
    block = normal(model.network.size, 2)
    expected = plain @ block
    torch.testing.assert_close(operator @ block, expected, rtol=1e-9, atol=1e-10)
    before = source.readings
    torch.testing.assert_close(operator @ block, expected, rtol=1e-9, atol=1e-10)
    assert source.readings == before and len(operator.model.cache.chunks["traced"]) == len(lengths)


def test_a_network_that_was_trained_on_is_refused() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x = torch.ones(2, 3, dtype=torch.float64)
    model = naive.surveyed(Network.of(network), Gaussian(), x, x[:, :2])
    operator, hessian = GGNProduct(Linearisation(model)), hessian_product(model)
    block = torch.ones(operator.shape[0], 1, dtype=torch.float64)
    _ = operator @ block, hessian @ block
    with torch.no_grad():
        next(network.parameters()).add_(1.0)
    for each in (operator, operator.root.T, hessian):
        with pytest.raises(MismatchError):
            _ = each @ block
