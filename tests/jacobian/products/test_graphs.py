"""Recorded graphs lose what computes nothing and keep their value; what would not hold for other numbers is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from lapwing.ground.errors import UnsupportedError
from lapwing.jacobian.products.graphs import after, check_pure, fuse, simplify

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


def fused(function: Callable[..., Tensor], *values: Tensor) -> tuple[GraphModule, list[str]]:
    """The graph after all rewritings, its last input the column, checked to give what it gave."""
    module = make_fx(function, tracing_mode="fake")(*values)
    simplify(module.graph)
    fuse(module.graph, 1)
    module.recompile()
    torch.testing.assert_close(module(*values), function(*values))
    late = after(module.graph, 1)
    return module, [str(node.target) for node in module.graph.nodes if node in late and node.op == "call_function"]


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def test_two_small_factors_meet_once_a_batch() -> None:
    a, b, v = draw(1, 5, 1), draw(1, 5, 1), draw(4, 5, 6)
    assert fused(lambda a, b, v: (v * a) * b, a, b, v)[1] == ["aten.mul.Tensor"]


def test_factors_stay_apart_where_that_is_no_gain() -> None:
    large, v = draw(4, 5, 6), draw(4, 5, 6)
    assert fused(lambda a, b, v: (v * a) * b, large, large + 1, v)[1] == ["aten.mul.Tensor"] * 2
    small = draw(1, 5, 1)
    twice = fused(lambda a, b, v: torch.exp(v * a) + (v * a) * b, small, small + 1, v)[1]
    assert twice.count("aten.mul.Tensor") + twice.count("aten.addcmul.default") == 2
    assert fused(lambda a, b, v: (v * a) * b, small, large, v[:1, :, :1])[1] == ["aten.mul.Tensor"] * 2


def test_a_product_is_added_in_one_pass() -> None:
    a, b, v = draw(4, 5), draw(1, 5), draw(4, 5)
    assert fused(lambda a, b, v: b * v + a, a, b, v)[1] == ["aten.addcmul.default"]
    assert fused(lambda a, b, v: v + v.exp() * b, a, b, v)[1] == ["aten.exp.default", "aten.addcmul.default"]


def test_a_product_known_before_the_column_stays_there() -> None:
    a, b, v = draw(4, 5), draw(4, 5), draw(4, 5)
    assert fused(lambda a, b, v: v + a * b, a, b, v)[1] == ["aten.add.Tensor"]


def test_a_product_is_not_added_where_shapes_or_weights_differ() -> None:
    a, b, v = draw(4, 5), draw(5), draw(4, 5)
    assert fused(lambda a, b, v: torch.add(a, b * v, alpha=2), a, b, v)[1] == ["aten.mul.Tensor", "aten.add.Tensor"]
    assert fused(lambda a, b, v: v.sum(0) * b + a, a, b, v)[1][-2:] == ["aten.mul.Tensor", "aten.add.Tensor"]


def batch_norm(x: Tensor, w: Tensor, mean: Tensor, variance: Tensor, g: Tensor, *, eps: float = 0.3) -> Tensor:
    """The tangent's normalised input with the tangent of the weight, and the adjoint, as recorded."""
    one = torch.ops.aten.fill.Scalar(torch.empty_like(variance), 1)
    scale = one / torch.sqrt(torch.ops.aten.add.Scalar(variance, 0.3))
    normalised = (x - mean.view(1, -1, 1)) * scale.view(1, -1, 1)
    mask = [True, True, True]
    pulled = torch.ops.aten.native_batch_norm_backward(g, x, w, mean, variance, None, None, False, eps, mask)
    return normalised * g + pulled[0] + pulled[1].view(1, -1, 1) + pulled[2].view(1, -1, 1)


def test_the_adjoint_of_a_batch_norm_reads_the_normalised_input() -> None:
    values = draw(4, 3, 5), draw(3), draw(3), torch.rand(3, dtype=torch.float64) + 0.5, draw(4, 3, 5)
    module, _ = fused(lambda *v: batch_norm(*v), *values)
    (adjoint,) = module.graph.find_nodes(op="call_function", target=torch.ops.aten.native_batch_norm_backward.default)
    assert adjoint.args[1].target is torch.ops.aten.mul.Tensor


def test_another_normalisation_is_left_alone() -> None:
    values = draw(4, 3, 5), draw(3), draw(3), torch.rand(3, dtype=torch.float64) + 0.5, draw(4, 3, 5)
    module, _ = fused(lambda *v: batch_norm(*v, eps=0.4), *values)
    (adjoint,) = module.graph.find_nodes(op="call_function", target=torch.ops.aten.native_batch_norm_backward.default)
    assert adjoint.args[1].op == "placeholder"
