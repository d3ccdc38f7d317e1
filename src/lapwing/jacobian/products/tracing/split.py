"""A product recorded once and cut in two: what depends on data and weights alone, and what depends on the column.

Automatic differentiation repeats the forward pass for every column. Recorded as a graph of tensor operations, the
product v -> A v falls into a part that is done once a batch, whose results are kept, and a part, linear in v, that is
done once a column: for a Gauss-Newton matrix 4/3 of the work of a gradient instead of 2 (Linearisation as in JAX).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import torch
from torch import Tensor
from torch.func import functionalize
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from lapwing.ground.errors import UnsupportedError, reason_of
from lapwing.jacobian.network.serving import ALONE
from lapwing.jacobian.products.tracing.fusion import fuse
from lapwing.jacobian.products.tracing.simplification import after, check_pure, simplify

TensorTuple: TypeAlias = tuple[Tensor, ...]

Groups: TypeAlias = tuple[TensorTuple, ...]
"""The results of a function, in groups that are asked for one at a time."""


@final
@dataclass(frozen=True, eq=False)
class Split:
    """A function of fixed tensors and a column, cut in two.

    Args:
        first: From the fixed tensors to what is kept.
        seconds: For each group of results, from what is kept and the column to them; the other groups are left out.
    """

    first: GraphModule
    seconds: tuple[GraphModule, ...]

    def prepare(self, fixed: Sequence[Tensor]) -> TensorTuple:
        """All that does not depend on the column.

        Args:
            fixed: Tensors of the shapes that were recorded.
        """
        with torch.inference_mode(False), torch.no_grad():
            return self.first(*fixed)

    def product(self, kept: TensorTuple, column: Sequence[Tensor | None], group: int = 0) -> TensorTuple:
        """One group of the function's results for one column.

        Args:
            kept: What ``prepare`` returned.
            column: Tensors of the shapes that were recorded; ``None`` for those that the group does not need.
            group: Which.
        """
        with torch.inference_mode(False), torch.no_grad():
            return self.seconds[group](*kept, *column)


def split(function: Callable[..., Groups], fixed: Sequence[Tensor], column: Sequence[Tensor]) -> Split:
    """Record a function of tensors and cut it.

    Nothing is computed: the function sees tensors without numbers. All tensors it depends on must be arguments; others
    are held by reference.

    Args:
        function: ``function(*fixed, *column)``, tuples of tensors.
        fixed: What stays from column to column.
        column: What does not.

    Returns:
        The two halves; they hold for tensors of the same shapes and dtypes.

    Raises:
        UnsupportedError: If the function cannot be recorded, or what was recorded does not hold for other numbers.

    Example:
        >>> both = split(lambda a, v, u: ((a.exp() * v,), (a + u,)), [torch.zeros(2)], [torch.zeros(2), torch.zeros(2)])
        >>> kept = both.prepare([torch.zeros(2)])
        >>> both.product(kept, [torch.ones(2), None]), both.product(kept, [None, torch.ones(2)], 1)
        ((tensor([1., 1.]),), (tensor([1., 1.]),))
    """
    record: Any = make_fx(functionalize(function), tracing_mode="fake", _allow_non_fake_inputs=True)
    apart = [value.detach() for value in (*fixed, *column)]  # a tensor given twice would be recorded as one input
    try:
        with ALONE, torch.inference_mode(False), torch.enable_grad():
            module: GraphModule = record(*apart)
    except Exception as reason:  # whatever a network does that cannot be recorded, there is a slower way
        said = f"{type(reason).__name__}: {reason_of(reason)}"
        raise UnsupportedError("a network whose operations can be recorded", said, "") from reason
    simplify(module.graph)
    check_pure(module.graph)
    fuse(module.graph, len(column))
    return cut(module, len(column))


def cut(module: GraphModule, columns: int) -> Split:
    """The graphs that do the work of one: what does not depend on the last ``columns`` inputs, and the rest.

    Returns:
        The first takes the other inputs and returns all that a second needs of it; a second takes that, and then the
        last inputs, and returns one group of what the graph did.
    """
    late = after(module.graph, columns)
    early = [node for node in module.graph.nodes if node not in late]
    kept = [node for node in early if any(user in late for user in node.users)]

    first = Graph()
    copies: dict[Node, Node] = {}
    for node in early:
        copies[node] = first.node_copy(node, copies.__getitem__)
    first.output(tuple(copies[node] for node in kept))

    second = Graph()
    copies = {node: second.placeholder(f"kept_{number}") for number, node in enumerate(kept)}
    for node in module.graph.nodes:
        if node in late:
            copies[node] = second.node_copy(node, copies.__getitem__)
    (output,) = second.find_nodes(op="output")
    groups = range(len(output.args[0]))
    return Split(_module(module, first), tuple(_module(module, only_group(second, group)) for group in groups))


def only_group(graph: Graph, group: int) -> Graph:
    """The graph that returns one group of the results, and does no more than they need."""
    own = Graph()
    results: Any = own.graph_copy(graph, {})
    own.output(results[group])
    own.eliminate_dead_code()
    return own


def held_bytes(tensors: tuple[Any, ...], given: tuple[Tensor, ...] = ()) -> int:
    """Bytes of memory that tensors keep alive, each storage counted once, those of ``given`` not at all."""
    known = {tensor.untyped_storage().data_ptr() for tensor in given}
    sizes: dict[int, int] = {}
    for tensor in tensors:
        if isinstance(tensor, Tensor):
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    return sum(size for pointer, size in sizes.items() if pointer not in known)


def _module(module: GraphModule, graph: Graph) -> GraphModule:
    constants = {str(node.target): getattr(module, str(node.target)) for node in graph.nodes if node.op == "get_attr"}
    return GraphModule(constants, graph)
