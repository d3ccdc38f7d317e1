"""Products with the Jacobian of every network, by both executors, against the naive Jacobian."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lapwing.ground.data import Data
from lapwing.jacobian.layers import layers
from lapwing.jacobian.layers.layerwise import Layerwise
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.products.jacobian import BatchJacobian, Jacobian
from lapwing.likelihoods import Gaussian
from lapwing.testing import check_adjoint, check_linear
from tests.cases import CASES
from tests.curvature import naive
from tests.curvature.naive import Known, known, surveyed
from tests.curvature.unchanged import unchanged
from tests.modules import Squared

BUDGETS = {"rows": 2**28, "columns": 0}

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")


def flat(case: Known) -> Tensor:
    return case.jacobian.flatten(0, -2)


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
        pushed, pulled = part.push(weights), part.pull(outputs)
    torch.testing.assert_close(pushed, rows @ weights, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(pulled, rows.mT @ outputs, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("columns", [1, 3, 5])
def test_batches_follow_each_other(columns: int) -> None:
    case = known("mlp")
    x, y = case.case.inputs, case.case.targets
    assert isinstance(x, Tensor)
    data = Data([(x[:1], y[:1]), (x[1:], y[1:])], like=case.network.like)
    operator = Jacobian(replace(case.model, source=data))
    rows = flat(case)
    assert operator.shape == rows.shape and operator.T.shape == rows.mT.shape and operator.T.T is operator
    assert operator.dtype == operator.T.dtype == torch.float64
    weights, outputs = torch.randn(rows.shape[1], columns).double(), torch.randn(len(rows), columns).double()
    torch.testing.assert_close(operator @ weights, rows @ weights)
    torch.testing.assert_close(operator.T @ outputs, rows.mT @ outputs)
    torch.testing.assert_close(operator.dense(), rows)
    check_adjoint(operator)
    check_linear(operator)


def test_small_chunks_of_rows_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "STRETCH", 1)
    case = known("mlp")
    budget = 3 * case.network.size * 8
    part = BatchJacobian(case.model, case.case.inputs, budget)
    assert len(list(part._rows())) == 4
    rows, block = flat(case), torch.randn(12, 4).double()
    torch.testing.assert_close(part.pull(block), rows.mT @ block)
    torch.testing.assert_close(part.push(rows.mT @ block), rows @ rows.mT @ block)


def test_rows_that_fit_are_kept_and_then_used_for_any_number_of_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    case = known("lenet")
    rows = flat(case)
    made: list[int] = []
    of = Layerwise.of
    monkeypatch.setattr(Layerwise, "of", lambda *args: (made.append(1), of(*args))[1])
    for memory, passes in ((2**31, [0, 1, 1, 1]), (0, [0, 1, 2, 2])):
        operator = Jacobian(case.model, memory=memory)
        made.clear()
        for columns, total in zip((1, 3, 4, 1), passes, strict=True):
            block = torch.randn(rows.shape[1], columns, dtype=torch.float64)
            torch.testing.assert_close(operator @ block, rows @ block)
            torch.testing.assert_close(operator.T @ (rows @ block), rows.mT @ (rows @ block))
            assert len(made) == (total if memory else 2 * total)


@pytest.mark.parametrize("executor", BUDGETS)
def test_single_weights_can_be_uncertain(executor: str) -> None:
    case = known("lenet")
    index = torch.tensor([0, 40, 100])
    network = Network(case.case.model, case.network.names, index)
    part = BatchJacobian(surveyed(network, case.case.likelihood, case.case.inputs), case.case.inputs, BUDGETS[executor])
    rows = flat(case)[:, index]
    torch.testing.assert_close(part.push(torch.eye(3, dtype=torch.float64)), rows)
    torch.testing.assert_close(part.pull(torch.eye(12, dtype=torch.float64)), rows.mT)


def test_without_forward_mode_the_adjoint_of_the_adjoint_will_do(caplog: pytest.LogCaptureFixture) -> None:
    model, same = Squared(custom=True).double(), Squared(custom=False).double()
    same.load_state_dict(model.state_dict())
    network, x = Network.of(model), torch.randn(4, 3, dtype=torch.float64)
    part = BatchJacobian(surveyed(network, Gaussian(), x), x, budget=0)
    block = torch.randn(network.size, 3, dtype=torch.float64)
    with caplog.at_level(logging.INFO, "lapwing"):
        pushed = part.push(block)
    assert "adjoint of the adjoint" in caplog.text
    torch.testing.assert_close(pushed, naive.jacobian(same, x)[1].flatten(0, 1) @ block)
