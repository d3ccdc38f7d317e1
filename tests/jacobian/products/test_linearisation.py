"""The linearised network: products with its Gauss-Newton matrix against dense ones, in every form, and their memory."""

from __future__ import annotations

import logging
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
from lapwing.jacobian.products import linearisation, recording
from lapwing.jacobian.products.forms import WORKING, Form
from lapwing.jacobian.products.hessian import hessian_product
from lapwing.jacobian.products.linearisation import BatchJacobian, Linearisation, layered
from lapwing.jacobian.survey import surveyed
from lapwing.likelihoods import Gaussian
from lapwing.linear.gauss_newton import GGNProduct, ggn_product
from tests.cases import CASES
from tests.curvature import naive
from tests.curvature.naive import Known, known
from tests.curvature.unchanged import unchanged
from tests.meter import Meter
from tests.modules import Squared
from tests.posterior_cases import normal

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

FORMS: list[Form] = ["layers", "split", "plain"]
UNRECORDED = ["branching"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_products_with_the_gauss_newton_matrix(name: str, form: Form) -> None:
    case = known(name)
    operator = GGNProduct(Linearisation(case.model, form=form))
    block = torch.randn(case.network.size, 3, dtype=torch.float64)
    expected = naive.ggn(case) @ block
    with unchanged(case.case.model):
        product, again = operator @ block, operator @ block[:, :1]
    torch.testing.assert_close(product, expected, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(again, expected[:, :1], rtol=1e-9, atol=1e-10)
    assert operator.T is operator and operator.dtype == torch.float64
    assert bool(operator.model.store.kept) == (form == "layers" or (form == "split" and name not in UNRECORDED))


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["mlp", "counts", "batch_norm", "unet", "branching", "tagger"])
def test_products_with_the_output_hessian_taken_elsewhere(name: str, form: Form, affine: bool) -> None:
    case = known(name)
    likelihood, weights = case.case.likelihood, case.network.weights
    base = GGNProduct(Linearisation(case.model, form=form))
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
def test_the_rule_picks_a_form_that_is_right(name: str, columns: int) -> None:
    case = known(name)
    operator = GGNProduct(Linearisation(case.model))
    block = torch.randn(case.network.size, columns, dtype=torch.float64)
    assert operator.model.choose(columns) in ("layers", "split")
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
    operator = GGNProduct(Linearisation(case.model, memory, "layers"))
    work, (each, beside), itemsize = operator.model.work, case.survey.floats, case.network.like.element_size()
    examples = operator.model.executors["layers"][0]
    taken = itemsize * (work.cotangents * each + beside + work.layers.held)
    rounded = itemsize * work.cotangents
    assert examples > capture.FEW and work.layers.held > each
    assert examples * taken <= memory // WORKING < (examples + 1) * (taken + rounded)


@pytest.mark.parametrize("form", ["layers", "split"])
@pytest.mark.parametrize(("memory", "kept"), [(2**31, True), (400, False)])
def test_what_fits_the_memory_is_kept(form: Form, memory: int, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "STRETCH", 1)
    case = known("mlp")
    x, y = case.case.inputs, case.case.targets
    assert isinstance(x, Tensor)
    source = Counted((x[:3], y[:3]), (x[3:], y[3:]))
    data = Data(source, like=case.network.like)
    operator = GGNProduct(Linearisation(replace(case.model, source=data), memory, form))
    size = operator.model.executors[form][0]
    assert data.examples == len(x)
    source.readings = 0
    block = torch.randn(case.network.size, 2, dtype=torch.float64)
    for reading in (1, 2, 3):
        torch.testing.assert_close(operator @ block, naive.ggn(case) @ block)
        assert source.readings == (1 if kept else reading)
    assert bool(operator.model.store.kept) == kept
    if kept:
        held = operator.model.store.bytes
        assert 0 < held <= memory
    else:
        assert size < 4  # chunks fit what little there is


@pytest.mark.parametrize("form", ["layers", "split", "plain"])
def test_single_weights_can_be_uncertain(form: Form) -> None:
    case = known("lenet")
    index = torch.tensor([0, 40, 100])
    network = Network(case.case.model, case.network.names, index)
    operator = GGNProduct(Linearisation(surveyed(network, case.case.likelihood, case.data), form=form))
    torch.testing.assert_close(operator.dense(), naive.ggn(case)[index][:, index])


def test_the_plain_form_cuts_batches_and_columns_to_the_memory(generator: torch.Generator) -> None:
    """The sum over a batch of 90 examples with 40 columns: whole, and with memory for few of either."""
    model = nn.Sequential(nn.Linear(3, 60), nn.Tanh(), nn.Linear(60, 2)).double()
    network, x = Network.of(model), torch.randn(90, 3, generator=generator, dtype=torch.float64)
    given = surveyed(network, Gaussian(), Data((x, x[:, :2]), like=network.like))
    block = torch.randn(network.size, 40, generator=generator, dtype=torch.float64)
    found, most = [], []
    for memory in (2**31, 2**19):
        linear = Linearisation(given, memory, "plain")
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


def test_a_column_and_a_block_are_each_kept_in_their_form(generator: torch.Generator) -> None:
    model, source = wide((10,), generator)
    operator, plain = GGNProduct(Linearisation(model)), GGNProduct(Linearisation(model, form="plain"))
    block = normal(model.network.size, 8)
    expected = plain @ block
    torch.testing.assert_close(operator @ block[:, :1], expected[:, :1], rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(operator @ block, expected, rtol=1e-9, atol=1e-10)
    before = source.readings
    torch.testing.assert_close(operator @ block[:, :1], expected[:, :1], rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(operator @ block, expected, rtol=1e-9, atol=1e-10)
    assert source.readings == before and set(operator.model.store.kept) == {"split", "layers"}


def test_what_is_at_hand_serves_where_the_better_form_would_push_it_out(generator: torch.Generator) -> None:
    model, _ = wide((10,), generator)
    block = normal(model.network.size, 8)
    roomy = Linearisation(model)
    expected = [GGNProduct(roomy) @ columns for columns in (block, block[:, :1])]
    taken = sum(size for _, size in roomy.store.kept["layers"])
    tight = Linearisation(model, taken * 8 // 7 + 64)
    assert (roomy.choose(1), tight.choose(1)) == ("split", "split")
    found = [GGNProduct(tight) @ columns for columns in (block, block[:, :1])]
    assert tight.choose(1) == "layers" and set(tight.store.kept) == {"layers"}
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


def test_batches_of_many_shapes_are_kept(monkeypatch: pytest.MonkeyPatch, generator: torch.Generator) -> None:
    """As padded text has them: those beyond the shapes that are recorded are kept as they are."""
    monkeypatch.setattr(recording, "SHAPES", 2)
    model, source = wide((1, 2, 3, 4), generator)
    operator, plain = (GGNProduct(Linearisation(model, form=form)) for form in ("split", "plain"))
    block = normal(model.network.size, 2)
    expected = plain @ block
    torch.testing.assert_close(operator @ block, expected, rtol=1e-9, atol=1e-10)
    before = source.readings
    torch.testing.assert_close(operator @ block, expected, rtol=1e-9, atol=1e-10)
    assert source.readings == before and len(operator.model.store.kept["split"]) == 4


BUDGETS = {"rows": 2**28, "columns": 0}


def flat(case: Known) -> Tensor:
    return case.jacobian.flatten(0, -2)


def shaped(case: Known, block: Tensor) -> Tensor:
    """Changes of all outputs, one a column, as cotangents."""
    return block.mT.reshape(-1, *case.outputs.shape)


@pytest.mark.parametrize("executor", BUDGETS)
@pytest.mark.parametrize("name", CASES)
def test_products_with_the_jacobian_and_its_adjoint(name: str, executor: str) -> None:
    case = known(name)
    rows = flat(case)
    columns = case.survey.output.numel()
    part = BatchJacobian(case.model, case.case.inputs, BUDGETS[executor])
    weights = torch.randn(case.network.size, columns, dtype=torch.float64)
    outputs = torch.randn(len(rows), columns, dtype=torch.float64)
    with unchanged(case.case.model):
        pushed, pulled = part.push(weights), part.pull(shaped(case, outputs))
    torch.testing.assert_close(pushed, shaped(case, rows @ weights), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(pulled, rows.mT @ outputs, rtol=1e-9, atol=1e-10)


def test_small_chunks_of_rows_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "STRETCH", 1)
    case = known("mlp")
    budget = 3 * case.network.size * 8
    part = BatchJacobian(case.model, case.case.inputs, budget)
    assert len(list(part._rows())) == 4
    rows, block = flat(case), torch.randn(12, 4).double()
    torch.testing.assert_close(part.pull(shaped(case, block)), rows.mT @ block)
    torch.testing.assert_close(part.push(rows.mT @ block), shaped(case, rows @ rows.mT @ block))


def test_rows_are_kept_where_asked_and_used_for_any_number_of_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = known("lenet")
    rows, made = flat(case), list[int]()
    monkeypatch.setattr(linearisation, "layered", lambda *args: (made.append(1), layered(*args))[1])
    for keep, passes in ((True, [0, 1, 1, 1]), (False, [0, 2, 4, 4])):
        part = BatchJacobian(case.model, case.case.inputs, keep=keep)
        made.clear()
        for columns, total in zip((1, 3, 4, 1), passes, strict=True):
            block = torch.randn(rows.shape[1], columns, dtype=torch.float64)
            torch.testing.assert_close(part.push(block), shaped(case, rows @ block))
            torch.testing.assert_close(part.pull(shaped(case, rows @ block)), rows.mT @ (rows @ block))
            assert len(made) == total


@pytest.mark.parametrize("executor", BUDGETS)
def test_a_batch_of_which_single_weights_are_uncertain(executor: str) -> None:
    case = known("lenet")
    index = torch.tensor([0, 40, 100])
    network = Network(case.case.model, case.network.names, index)
    part = BatchJacobian(
        naive.surveyed(network, case.case.likelihood, case.case.inputs), case.case.inputs, BUDGETS[executor]
    )
    rows = flat(case)[:, index]
    torch.testing.assert_close(part.push(torch.eye(3, dtype=torch.float64)), shaped(case, rows))
    torch.testing.assert_close(part.pull(shaped(case, torch.eye(12, dtype=torch.float64))), rows.mT)


def test_without_forward_mode_the_adjoint_of_the_adjoint_will_do(caplog: pytest.LogCaptureFixture) -> None:
    model, same = Squared(custom=True).double(), Squared(custom=False).double()
    same.load_state_dict(model.state_dict())
    network, x = Network.of(model), torch.randn(4, 3, dtype=torch.float64)
    part = BatchJacobian(naive.surveyed(network, Gaussian(), x), x, budget=0)
    block = torch.randn(network.size, 3, dtype=torch.float64)
    with caplog.at_level(logging.INFO, "lapwing"):
        pushed = part.push(block)
    assert "adjoint of the adjoint" in caplog.text
    torch.testing.assert_close(pushed, (naive.jacobian(same, x)[1] @ block).movedim(-1, 0))


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
