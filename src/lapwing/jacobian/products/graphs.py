"""Recorded graphs of tensor operations: whether they hold for other numbers, and what makes them shorter.

What computes nothing is removed; what remains is rewritten to make columns cheaper, or to keep less between them.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.node import map_aggregate

from lapwing.ground.errors import UnsupportedError

aten: Any = torch.ops.aten


OPERATION: Any = type(aten.add.Tensor)


SAME = {aten.alias.default, aten.detach.default, aten.lift_fresh.default, aten.lift_fresh_copy.default}


RESHAPED = {
    aten.clone.default,
    aten.view.default,
    aten._unsafe_view.default,
    aten.expand.default,
    aten.permute.default,
    aten._to_copy.default,
}
"""Operations that return their first argument where shape, strides and dtype stay."""


ZEROS = {aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default}


FILLED = {aten.full.default, aten.full_like.default, aten.fill.Scalar}


LINEAR = {
    aten.neg.default,
    aten.t.default,
    aten.transpose.int,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.slice.Tensor,
    aten.select.int,
    aten.sum.dim_IntList,
    aten.mean.dim,
    aten.div.Tensor,
    aten.div.Scalar,
    aten.mul.Scalar,
    aten.constant_pad_nd.default,
    aten.threshold_backward.default,
    aten.gather.default,
    *RESHAPED,
}
"""Operations that are zero where their first argument is."""


BILINEAR = {aten.mul.Tensor, aten.mm.default, aten.bmm.default}
"""Operations that are zero where one of their first two arguments is."""


def simplify(graph: Graph) -> None:
    """Remove from a graph without side effects what computes nothing: copies, known zeros, repetitions, dead code."""
    zeros: set[Node] = set()
    seen: dict[Hashable, Node] = {}
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if node.target is aten._efficientzerotensor.default:
            node.target = aten.zeros.default
        other = _shorter(node, zeros)
        if other is None:
            if _is_zero(node, zeros):
                zeros.add(node)
            other = seen.setdefault(_identity(node), node)
        if other is not node:
            node.replace_all_uses_with(other)
    graph.eliminate_dead_code()


def check_pure(graph: Graph) -> None:
    """Raise where running a graph again, on other numbers of the same shapes, may not be what was traced.

    Raises:
        UnsupportedError: If an operation writes to its arguments, draws random numbers, or makes shapes out of numbers.
    """
    for node in graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        target: Any = node.target
        if not isinstance(target, OPERATION):
            reason = "is not a tensor operation"
        elif target._schema.is_mutable:
            reason = "writes to its arguments"
        elif torch.Tag.nondeterministic_seeded in target.tags:
            reason = "draws random numbers"
        elif _shaped_by_numbers(node, target):
            reason = "has a result whose shape depends on the numbers"
        else:
            continue
        raise UnsupportedError("a network whose operations can be recorded", f"{target}, which {reason}", "")


def _shorter(node: Any, zeros: set[Node]) -> Node | None:
    """An earlier node with the same value."""
    first = node.args[0] if node.args else None
    if not isinstance(first, Node):
        return None
    if node.target in SAME or (node.target in RESHAPED and _same_layout(node, first)):
        return first
    if node.target is aten.t.default and first.target is aten.t.default:
        return _node(first.args[0])
    if node.target in (aten.add.Tensor, aten.sub.Tensor):
        second = node.args[1]
        if isinstance(second, Node) and second in zeros and same_shape(node, first):
            return first
        if node.target is aten.add.Tensor and not node.kwargs and first in zeros and isinstance(second, Node):
            return second if same_shape(node, second) else None
    return None


def _is_zero(node: Any, zeros: set[Node]) -> bool:
    if node.target in ZEROS:
        return True
    if node.target in FILLED:
        return node.args[1] == 0
    if node.target in LINEAR:
        return node.args[0] in zeros
    if node.target in BILINEAR:
        return any(argument in zeros for argument in node.args[:2])
    if node.target in (aten.add.Tensor, aten.sub.Tensor):
        return all(argument in zeros for argument in node.args[:2])
    if node.target is aten.convolution.default:
        return node.args[2] is None and any(argument in zeros for argument in node.args[:2])
    return False


def _identity(node: Node) -> Hashable:
    """Equal for two nodes that compute the same."""
    return (node.target, _frozen(node.args), _frozen(node.kwargs))


def _frozen(value: Any) -> Hashable:
    if isinstance(value, list | tuple):
        return tuple(_frozen(part) for part in value)
    if isinstance(value, dict):
        return tuple((key, _frozen(part)) for key, part in sorted(value.items()))
    return (type(value), str(value) if isinstance(value, slice | float) else value)


def _shaped_by_numbers(node: Node, target: Any) -> bool:
    if target is aten.index.Tensor:
        masks: list[Any] = []
        map_aggregate(node.args[1], masks.append)
        return any(isinstance(mask, Node) and not value_of(mask).dtype.is_signed for mask in masks)
    tags = target.tags
    return torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags


def value_of(node: Node) -> Tensor:
    """A tensor without numbers, like the node's."""
    return node.meta["val"]


def same_shape(a: Node, b: Node) -> bool:
    """Whether two nodes agree in shape and dtype."""
    return value_of(a).shape == value_of(b).shape and value_of(a).dtype == value_of(b).dtype


def _same_layout(a: Node, b: Node) -> bool:
    return same_shape(a, b) and value_of(a).stride() == value_of(b).stride()


def _node(value: object) -> Node | None:
    return value if isinstance(value, Node) else None


def after(graph: Graph, columns: int) -> set[Node]:
    """The nodes that depend on the last ``columns`` inputs, and the output."""
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    late = set(inputs[len(inputs) - columns :])
    for node in graph.nodes:
        if node.op == "output" or any(argument in late for argument in node.all_input_nodes):
            late.add(node)
    return late


def fuse(graph: Graph, columns: int) -> None:
    """Apply all rewritings to a simplified graph whose last ``columns`` inputs are the column."""
    late = after(graph, columns)
    for node in list(graph.nodes):
        if node.target is aten.native_batch_norm_backward.default:
            share_normalised(graph, node)
        elif node in late and node.target is aten.mul.Tensor:
            regroup(graph, node, late)
        elif node in late and node.target is aten.add.Tensor:
            multiply_add(node, late)
    graph.eliminate_dead_code()


def regroup(graph: Graph, node: Any, late: set[Node]) -> None:
    """``(v a) b`` as ``v (a b)``, where a and b, small and independent of the column, then meet once a batch."""
    product, b = node.args
    if not (isinstance(product, Node) and isinstance(b, Node) and product.target is aten.mul.Tensor):
        return
    v, a = product.args
    if not (isinstance(v, Node) and isinstance(a, Node) and v in late and not late & {a, b}):
        return
    sizes = [value_of(part).numel() for part in (a, b)]
    if len(product.users) == 1 and 2 * max(sizes) <= value_of(v).numel() and same_shape(v, node):
        with graph.inserting_before(node):
            both = graph.call_function(aten.mul.Tensor, (a, b))
        both.meta["val"] = value_of(a) * value_of(b)
        node.args = (v, both)


def multiply_add(node: Any, late: set[Node]) -> None:
    """``x + a b`` in one pass over memory."""
    for x, product in (node.args[:2], node.args[1::-1]):
        if not (isinstance(x, Node) and product in late and product.target is aten.mul.Tensor):
            continue
        a, b = product.args
        fits = same_shape(x, node) and same_shape(product, node) and not node.kwargs
        if fits and isinstance(a, Node) and isinstance(b, Node) and len(product.users) == 1:
            node.target, node.args = aten.addcmul.default, (x, a, b)
            return


def share_normalised(graph: Graph, node: Any) -> None:
    """Let the adjoint of a batch norm with frozen statistics read the normalised input that the tangent reads.

    The tangent of γ x̂ + β needs x̂ = (x - μ) / σ, the adjoint needs x: as the adjoint of a batch norm of x̂ with
    mean 0, variance 1 and weight γ / σ it does without x, which then need not be kept.
    """
    gradient, x, weight, mean, variance, *saved, training, eps, mask = node.args
    if training or not all(isinstance(part, Node) for part in (x, weight, mean, variance)):
        return
    for candidate in graph.nodes:
        if candidate is node:
            return
        scale = _scale(candidate, x, mean, variance, eps)
        if scale is not None:
            break
    else:
        return
    with graph.inserting_before(node):
        factor = graph.call_function(aten.mul.Tensor, (weight, scale))
        centre = graph.call_function(aten.zeros_like.default, (mean,))
        width = graph.call_function(aten.ones_like.default, (variance,))
    node.args = (gradient, candidate, factor, centre, width, *saved, training, 0.0, mask)


def _scale(node: Any, x: Node, mean: Node, variance: Node, eps: float) -> Node | None:
    """The vector 1 / σ of a node that is ``(x - mean) / σ``, σ² = variance + eps; ``None`` for other nodes."""
    if node.target is not aten.mul.Tensor:
        return None
    difference, factor = node.args
    if not (_is(difference, aten.sub.Tensor) and _is(factor, aten.view.default)):
        return None
    first, second = difference.args[:2]
    scale = factor.args[0]
    if first is not x or not _is(second, aten.view.default) or second.args[0] is not mean:
        return None
    if not _is(scale, aten.div.Tensor) or not _is(scale.args[1], aten.sqrt.default):
        return None
    one, total = scale.args[0], scale.args[1].args[0]
    fits = _is(one, aten.fill.Scalar) and one.args[1] == 1 and _is(total, aten.add.Scalar)
    return scale if fits and total.args == (variance, eps) else None


def _is(value: Any, target: object) -> bool:
    return isinstance(value, Node) and value.target is target
