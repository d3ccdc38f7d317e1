"""Every structure comes back as it was: same tree, same bits."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from lapwing.ground.archive import Tensors
from lapwing.ground.errors import DataError, UnsupportedError
from lapwing.linalg import (
    BlockDiagonal,
    Dense,
    Diagonal,
    FunctionOperator,
    Kronecker,
    LowRank,
    Operator,
    Structured,
    Sum,
)
from lapwing.store.operators import operator_from, operator_state

CPU = torch.device("cpu")


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def gram(*shape: int) -> Tensor:
    root = normal(*shape, shape[-1])
    return root @ root.mT


SHARED = gram(3)
POSITIONS = (torch.tensor([0, 3, 5]), torch.tensor([4, 1, 2]))
OPERATORS: dict[str, Structured] = {
    "diagonal": Diagonal(normal(4).exp()),
    "dense": Dense(gram(4)),
    "dense-scaled-shifted": Dense(gram(4)).scaled(1 / 3).shifted(0.1),
    "dense-tensor-scalars": Dense(gram(4)).scaled(torch.tensor(1 / 3)).shifted(torch.tensor(0.1, dtype=torch.float64)),
    "kronecker": Kronecker(gram(2), gram(3)),
    "kronecker-groups": Kronecker(gram(4, 2), gram(4, 3)).scaled(1 / 7).shifted(2.0),
    "kronecker-embedding": Kronecker(gram(2), normal(3).exp()).plus_diagonal(Diagonal(torch.full((6,), 0.3).double())),
    "low-rank": LowRank(normal(5, 2)),
    "low-rank-plus-diagonal": LowRank(normal(5, 2), Diagonal(normal(5).exp())).scaled(2.0),
    "blocks": BlockDiagonal((Dense(SHARED), Dense(SHARED), Diagonal(normal(2).exp()))),
    "blocks-of-positions": BlockDiagonal((Dense(gram(3)), Diagonal(normal(3).exp())), POSITIONS),
    "blocks-of-blocks": BlockDiagonal((BlockDiagonal((Dense(gram(2)), Kronecker(gram(1), gram(2)))), Dense(gram(2)))),
    "sum": Sum((LowRank(normal(4, 2)), Diagonal(normal(4).exp()))),
}


def through(operator: Operator) -> Structured:
    tensors = Tensors()
    spec: dict[str, Any] = json.loads(json.dumps(operator_state(operator, "curvature", tensors)))
    return operator_from(spec, tensors, CPU)


@pytest.mark.parametrize("name", OPERATORS)
def test_comes_back_bit_for_bit(name: str) -> None:
    operator = OPERATORS[name]
    again = through(operator)
    assert type(again) is type(operator)
    assert (again.shape, again.dtype) == (operator.shape, operator.dtype)
    block = normal(operator.shape[0], 3)
    assert torch.equal(again @ block, operator @ block)
    assert torch.equal(again.diagonal(), operator.diagonal())
    assert torch.equal(again.eigenvalues(), operator.eigenvalues())
    assert torch.equal(again.shifted(0.5).logdet(), operator.shifted(0.5).logdet())
    solved, noise = operator.shifted(0.5), normal(operator.shape[0])
    assert torch.equal(through(solved).inverse_root() @ noise, solved.inverse_root() @ noise)


@pytest.mark.parametrize("scalar", [1 / 3, torch.tensor(1 / 3), torch.tensor(1 / 3, dtype=torch.float64)], ids=repr)
def test_scalars_keep_their_type(scalar: float | Tensor) -> None:
    again = through(Dense(gram(2), scalar, scalar))
    assert isinstance(again, Dense)
    for value in (again.scale, again.shift):
        assert type(value) is type(scalar)
        assert torch.as_tensor(value).dtype == torch.as_tensor(scalar).dtype
        assert float(value) == float(scalar)


def test_positions_take_half_the_bytes_and_come_back_long() -> None:
    tensors = Tensors()
    spec = operator_state(OPERATORS["blocks-of-positions"], "curvature", tensors)
    assert tensors.named["curvature.0.index"].dtype == torch.int32
    again = operator_from(spec, tensors, CPU)
    assert isinstance(again, BlockDiagonal)
    assert again.index is not None
    assert [(x.dtype, x.tolist()) for x in again.index] == [(torch.long, x.tolist()) for x in POSITIONS]


def test_positions_beyond_32_bits_stay_whole() -> None:
    from lapwing.store.operators import index_state

    tensors, far = Tensors(), torch.tensor([2**40])
    assert tensors.get(index_state(far, "far", tensors), CPU).tolist() == [2**40]


def test_operators_known_only_by_products_are_refused() -> None:
    products = FunctionOperator(lambda v: v, lambda u: u, (2, 2), torch.zeros(1))
    with pytest.raises(UnsupportedError, match="FunctionOperator"):
        operator_state(Sum((products,)), "curvature", Tensors())


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(DataError, match="'Toeplitz'"):
        operator_from({"kind": "Toeplitz"}, Tensors(), CPU)
