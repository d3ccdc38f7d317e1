"""The Jacobian of one batch against the dense one, by explicit rows and column by column."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor

from lapwing.jacobian.network.network import Network
from lapwing.jacobian.products import batch_jacobian
from lapwing.jacobian.products.batch_jacobian import BatchJacobian
from lapwing.jacobian.products.explicit_jacobian import explicit_chunk
from lapwing.likelihoods import Gaussian
from lapwing.linear.model import Chunk
from tests.cases import CASES
from tests.curvature import naive
from tests.curvature.naive import Known, known
from tests.curvature.unchanged import unchanged
from tests.modules import Squared
from tests.pairwise import in_turn

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

BUDGETS = {"rows": 2**28, "columns": 0}


def flat(case: Known) -> Tensor:
    return case.jacobian.flatten(0, -2)


def shaped(case: Known, block: Tensor) -> Tensor:
    """Changes of all outputs, one a column, as cotangents."""
    return block.mT.reshape(-1, *case.outputs.shape)


@pytest.mark.parametrize(("name", "executor"), in_turn(CASES, BUDGETS, whole=("mlp", "lenet", "tied", "tagger")))
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


def test_small_chunks_of_rows_add_up() -> None:
    case = known("mlp")
    part = BatchJacobian(case.model, case.case.inputs, budget=1)
    assert len(list(part.rows())) == 4
    rows, block = flat(case), torch.randn(12, 4).double()
    torch.testing.assert_close(part.pull(shaped(case, block)), rows.mT @ block)
    torch.testing.assert_close(part.push(rows.mT @ block), shaped(case, rows @ rows.mT @ block))


def test_rows_are_kept_where_asked_and_used_for_any_number_of_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = known("lenet")
    rows, made = flat(case), list[int]()

    def counting(*args: Any) -> tuple[Chunk, int]:
        made.append(1)
        return explicit_chunk(*args)

    monkeypatch.setattr(batch_jacobian, "explicit_chunk", counting)
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
