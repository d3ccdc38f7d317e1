"""Rewritings of a recorded graph that make columns cheaper, or keep less between them."""

from __future__ import annotations

from typing import Any

from torch.fx import Graph, Node

from lapwing.jacobian.products.tracing.simplification import after, aten, same_shape, value_of


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
    larger = max(value_of(a).numel(), value_of(b).numel())
    if len(product.users) == 1 and 2 * larger <= value_of(v).numel() and same_shape(v, node):
        with graph.inserting_before(node):
            both = graph.call_function(aten.mul.Tensor, (a, b))
        both.meta["val"] = value_of(a) * value_of(b)
        node.args = (v, both)


def multiply_add(node: Any, late: set[Node]) -> None:
    """``x + a b`` in one pass over memory."""
    left, right = node.args[:2]
    for x, product in ((left, right), (right, left)):
        if not (isinstance(x, Node) and product in late and product.target is aten.mul.Tensor):
            continue
        a, b = product.args
        fits = same_shape(x, node) and same_shape(product, node) and not node.kwargs
        if fits and isinstance(a, Node) and isinstance(b, Node) and len(product.users) == 1:
            node.target = aten.addcmul.default
            node.args = (x, a, b)
            return


def share_normalised(graph: Graph, node: Any) -> None:
    """Let the adjoint of a batch norm with frozen statistics read the normalised input that the tangent reads.

    The tangent of γ x̂ + β needs x̂ = (x - μ) / σ, the adjoint needs x: as the adjoint of a batch norm of x̂ with
    mean 0, variance 1 and weight γ / σ it does without x, which then need not be kept.
    """
    gradient, x, weight, mean, variance, *saved, training, eps, mask = node.args
    if training or not all(isinstance(part, Node) for part in (x, weight, mean, variance)):
        return
    normalised = None
    scale = None
    for candidate in graph.nodes:
        if candidate is node:
            return
        scale = _scale(candidate, x, mean, variance, eps)
        if scale is not None:
            normalised = candidate
            break
    with graph.inserting_before(node):
        factor = graph.call_function(aten.mul.Tensor, (weight, scale))
        zero = graph.call_function(aten.zeros_like.default, (mean,))
        one = graph.call_function(aten.ones_like.default, (variance,))
    node.args = (gradient, normalised, factor, zero, one, *saved, training, 0.0, mask)


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
    one = scale.args[0]
    total = scale.args[1].args[0]
    fits = _is(one, aten.fill.Scalar) and one.args[1] == 1 and _is(total, aten.add.Scalar)
    return scale if fits and total.args == (variance, eps) else None


def _is(value: Any, target: object) -> bool:
    return isinstance(value, Node) and value.target is target
