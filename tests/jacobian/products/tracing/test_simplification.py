"""Recorded graphs lose what computes nothing and keep their value; what would not hold for other numbers is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from lapwing.ground.errors import UnsupportedError
from lapwing.jacobian.products.tracing.simplification import check_pure, simplify

A, B = torch.arange(6.0).view(2, 3).double() - 2, torch.linspace(-1, 3, 6).view(2, 3).double()


def recorded(function: Callable[..., Tensor]) -> GraphModule:
    return make_fx(function, tracing_mode="fake")(A, B)


def operations(module: GraphModule) -> list[str]:
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (lambda a, b: (a.clone().detach().view(2, 3) * b).expand(2, 3), ["aten.mul.Tensor"]),
        (lambda a, b: a.t().t() * b, ["aten.mul.Tensor"]),
        (lambda a, b: torch.exp(a) * torch.exp(a) + b, ["aten.exp.default", "aten.mul.Tensor", "aten.add.Tensor"]),
        (lambda a, b: a * b + torch.zeros_like(a) * b, ["aten.mul.Tensor"]),
        (lambda a, b: torch.zeros(2, 2).double() @ a + b, []),
        (lambda a, b: a * b - (0 * torch.ones_like(a)).new_zeros(2, 3), ["aten.mul.Tensor"]),
    ],
    ids=["copies", "transposes", "repetitions", "zero products", "zero matrix", "zero subtrahend"],
)
def test_what_computes_nothing_goes(function: Callable[..., Tensor], left: list[str]) -> None:
    module = recorded(function)
    simplify(module.graph)
    module.recompile()
    assert operations(module) == left
    torch.testing.assert_close(module(A, B), function(A, B))


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: a.t().clone(memory_format=torch.contiguous_format).view(2, 3) * b,
        lambda a, b: torch.zeros(3).double() + a.sum(0) * b,
        lambda a, b: torch.zeros(2, 3).double() - a * b,
        lambda a, b: a + (a[:1] - a[:1]) + b.to(torch.float32),
        lambda a, b: torch.full((2, 3), 2.0).double() * a + b,
    ],
    ids=["a copy that changes strides", "a zero that broadcasts", "a minuend", "a change of dtype", "not a zero"],
)
def test_what_changes_the_value_stays(function: Callable[..., Tensor]) -> None:
    module = recorded(function)
    simplify(module.graph)
    module.recompile()
    assert torch.equal(module(A, B), function(A, B))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda a, b: a * torch.rand_like(b), "draws random numbers"),
        (lambda a, b: a.add_(b), "writes to its arguments"),
        (lambda a, b: b[a > 0], "depends on the numbers"),
        (lambda a, b: torch.unique(a) + b.sum(), "depends on the numbers"),
    ],
    ids=["random", "in place", "mask", "unique"],
)
def test_what_does_not_hold_for_other_numbers_is_refused(function: Callable[..., Tensor], reason: str) -> None:
    module = make_fx(function, tracing_mode="real")(A.clone(), B.clone())
    with pytest.raises(UnsupportedError, match=reason):
        check_pure(module.graph)


def test_indices_that_are_numbers_are_no_masks() -> None:
    check_pure(recorded(lambda a, b: (a + b)[torch.tensor([0, 1, 1])]).graph)
