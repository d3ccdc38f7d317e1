"""Matrix-free curvature against the dense matrices of every network."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from lapwing.curvature import layers
from lapwing.curvature.costs import Form
from lapwing.curvature.hessian import GGNProduct, HessianProduct
from lapwing.curvature.network import Network
from lapwing.curvature.survey import find_layers
from lapwing.data import Data
from lapwing.errors import UnsupportedError
from lapwing.likelihoods import Gaussian
from lapwing.testing import check_symmetric
from tests.cases import CASES
from tests.curvature import naive
from tests.curvature.naive import known
from tests.curvature.unchanged import unchanged

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

FORMS: list[Form] = ["layers", "split", "plain"]
UNRECORDED = ["branching"]
TWICE = ["mlp", "counts", "lenet", "layer_norm", "called_twice", "tied", "bare_parameter", "unet", "tagger"]
TWICE += ["batch_norm", "cross_attention", "lstm", "reparametrised"]


@cache
def exact_hessian(name: str) -> Tensor:
    """Central differences of the gradient of the module's own loss."""
    case = known(name)
    model = copy.deepcopy(case.case.model)
    params = [value for value in model.parameters() if value.requires_grad]
    weights = nn.utils.parameters_to_vector(params).detach()

    def gradient(at: Tensor) -> Tensor:
        nn.utils.vector_to_parameters(at, params)
        f = case.case.likelihood.canonical(naive.call(model, case.case.inputs))
        y = case.case.likelihood.canonical_targets(f, case.case.targets)
        return naive.gradient(case.case.likelihood.nll(f, y).sum(), params)

    steps = 1e-5 * torch.eye(len(weights), dtype=torch.float64)
    return torch.stack([(gradient(weights + step) - gradient(weights - step)) / 2e-5 for step in steps])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_products_with_the_gauss_newton_matrix(name: str, form: Form) -> None:
    case = known(name)
    operator = GGNProduct(case.network, case.survey, case.case.likelihood, case.data, form=form)
    block = torch.randn(case.network.size, 3, dtype=torch.float64)
    expected = naive.ggn(case) @ block
    with unchanged(case.case.model):
        product = operator @ block
        again = operator @ block[:, :1]
    torch.testing.assert_close(product, expected, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(again, expected[:, :1], rtol=1e-9, atol=1e-10)
    assert operator.T is operator and operator.dtype == torch.float64
    kept = operator.linearisation.store.chunks is not None
    assert kept == (form == "layers" or (form == "split" and name not in UNRECORDED))


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["mlp", "counts", "batch_norm", "unet", "branching", "tagger"])
def test_products_with_the_output_hessian_taken_elsewhere(name: str, form: Form, affine: bool) -> None:
    case = known(name)
    likelihood, weights = case.case.likelihood, case.network.weights
    base = GGNProduct(case.network, case.survey, likelihood, case.data, form=form)
    f, j = case.outputs, case.jacobian
    moved = weights + 0.3 * torch.randn(weights.shape, dtype=torch.float64)
    h = f + j @ (moved - weights) if affine else j @ moved
    b = likelihood.hessian(h, likelihood.canonical_targets(h, case.case.targets))
    expected = torch.einsum("pci,pcd,pdj->ij", j.flatten(0, -3), b.flatten(0, -3), j.flatten(0, -3))
    shifted = base.at(moved, affine=affine)
    block = torch.randn(len(weights), 3, dtype=torch.float64)
    for _ in range(2):
        torch.testing.assert_close(shifted @ block, expected @ block, rtol=1e-9, atol=1e-9)
    assert shifted.linearisation is base.linearisation
    torch.testing.assert_close(base @ block, naive.ggn(case) @ block, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("columns", [1, 9])
@pytest.mark.parametrize("name", ["mlp", "batch_norm", "unet", "branching", "tagger"])
def test_the_rule_picks_a_form_that_is_right(name: str, columns: int) -> None:
    case = known(name)
    operator = GGNProduct(case.network, case.survey, case.case.likelihood, case.data)
    block = torch.randn(case.network.size, columns, dtype=torch.float64)
    assert operator.choose(columns) in ("layers", "split")
    operator.prepare(columns)
    torch.testing.assert_close(operator @ block, naive.ggn(case) @ block, rtol=1e-9, atol=1e-10)


class Counted:
    """Batches of one case, counted as they are read."""

    def __init__(self, *batches: tuple[Tensor, Tensor]) -> None:
        self.batches = batches
        self.readings = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.readings += 1
        return iter(self.batches)


@pytest.mark.parametrize("form", ["layers", "split"])
@pytest.mark.parametrize(("memory", "kept"), [(2**31, True), (400, False)])
def test_what_fits_the_memory_is_kept(form: Form, memory: int, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "STRETCH", 1)
    case = known("mlp")
    x, y = case.case.inputs, case.case.targets
    assert isinstance(x, Tensor)
    source = Counted((x[:3], y[:3]), (x[3:], y[3:]))
    data = Data(source, like=case.network.like)
    operator = GGNProduct(case.network, case.survey, case.case.likelihood, data, memory, form)
    size = operator.linearisation.executors[form].size(100)
    assert operator.linearisation.examples == len(x)
    source.readings = 0
    block = torch.randn(case.network.size, 2, dtype=torch.float64)
    for reading in (1, 2, 3):
        torch.testing.assert_close(operator @ block, naive.ggn(case) @ block)
        assert source.readings == (1 if kept else reading)
    assert (operator.linearisation.store.chunks is not None) == kept
    if kept:
        held = sum(chunk.bytes or 0 for chunk in operator.linearisation.store.chunks or ())
        assert 0 < held <= memory
    else:
        assert size < 4  # chunks fit what little there is


@pytest.mark.parametrize("form", ["layers", "split", "plain"])
def test_single_weights_can_be_uncertain(form: Form) -> None:
    case = known("lenet")
    index = torch.tensor([0, 40, 100])
    network = Network(case.case.model, case.network.names, index)
    survey = find_layers(network, case.case.inputs)
    operator = GGNProduct(network, survey, case.case.likelihood, case.data, form=form)
    torch.testing.assert_close(operator.dense(), naive.ggn(case)[index][:, index])


@pytest.mark.parametrize("form", [None, "plain"])
@pytest.mark.parametrize("name", TWICE)
def test_products_with_the_hessian(name: str, form: Form | None) -> None:
    case = known(name)
    operator = HessianProduct(case.network, case.case.likelihood, case.data, form=form)
    with unchanged(case.case.model):
        dense = operator.dense()
    torch.testing.assert_close(dense, exact_hessian(name), rtol=1e-5, atol=1e-6)
    assert operator.T is operator and operator.dtype == torch.float64
    assert (operator._store.chunks is not None) == (form is None)


def test_products_are_sums_over_batches() -> None:
    case = known("mlp")
    x, y = case.case.inputs, case.case.targets
    assert isinstance(x, Tensor)
    data = Data([(x[:3], y[:3]), (x[3:], y[3:])], like=case.network.like)
    for parts, whole in (
        (HessianProduct(case.network, case.case.likelihood, data), exact_hessian("mlp")),
        (GGNProduct(case.network, case.survey, case.case.likelihood, data), naive.ggn(case)),
    ):
        torch.testing.assert_close(parts.dense(), whole, rtol=1e-5, atol=1e-6)
        check_symmetric(parts)


def test_an_operation_without_a_second_derivative_is_refused() -> None:
    """PyTorch's own second derivative of the weight norm is wrong: better none."""
    network = Network.of(nn.utils.parametrizations.weight_norm(nn.Linear(2, 1)))
    data = Data([(torch.ones(3, 2), torch.ones(3, 1))], like=network.like)
    with pytest.raises(UnsupportedError, match="_weight_norm_interface"):
        HessianProduct(network, Gaussian(), data).dense()


def test_rows_without_a_gradient_have_no_curvature() -> None:
    """Forward mode would move the padding row of an embedding."""
    model = nn.Sequential(nn.Embedding(3, 2, padding_idx=0), nn.Flatten(), nn.Tanh(), nn.Linear(4, 1)).double()
    x, y = torch.tensor([[0, 1], [2, 0]]), torch.zeros(2, 1, dtype=torch.float64)
    network = Network.of(model)
    hessian = HessianProduct(network, Gaussian(), Data([(x, y)], like=network.like)).dense()
    torch.testing.assert_close(hessian, hessian.mT)
    assert not hessian[:2].any() and hessian[2:6].any()
