"""Recorded graphs of tensor operations: whether they hold for other numbers, and without what computes nothing."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.node import map_aggregate

from lapwing.ground.errors import UnsupportedError

aten: Any = torch.ops.aten

OPERATION: Any = type(aten.add.Tensor)

SAME = {aten.alias.default, aten.detach.default, aten.lift_fresh.default, aten.lift_fresh_copy.default}
"""Operations that return their first argument."""

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
"""Operations that are zero, or where their second argument is."""

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


SIZES = {operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod}
"""What sizes of which one is left open are computed by."""


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
        if node.op != "call_function" or node.target is operator.getitem or node.target in SIZES:
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
    """Whether two nodes agree in shape and dtype, whatever a size is that is left open."""
    return spelled(value_of(a).shape) == spelled(value_of(b).shape) and value_of(a).dtype == value_of(b).dtype


def spelled(sizes: Iterable[int | torch.SymInt]) -> list[str]:
    """Sizes that are compared as they are written: one that is left open is no number."""
    return list(map(str, sizes))


def _same_layout(a: Node, b: Node) -> bool:
    return same_shape(a, b) and spelled(value_of(a).stride()) == spelled(value_of(b).stride())


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
