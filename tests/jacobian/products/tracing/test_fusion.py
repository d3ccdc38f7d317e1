"""Recorded graphs rewritten to make columns cheaper keep their value, and are rewritten where that is a gain."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from lapwing.jacobian.products.tracing.fusion import fuse
from lapwing.jacobian.products.tracing.simplification import after, simplify


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
