"""A product recorded once and cut in two: what depends on data and weights alone, and what depends on the column.

Automatic differentiation repeats the forward pass for every column. Recorded as a graph of tensor operations, the
product v -> A v falls into a part that is done once a batch, whose results are kept, and a part, linear in v, that is
done once a column: for a Gauss-Newton matrix 4/3 of the work of a gradient instead of 2 (Linearisation as in JAX).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor
from torch.func import functionalize
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from lapwing.ground.errors import UnsupportedError, reason_of
from lapwing.jacobian.network.network import ALONE
from lapwing.jacobian.products.graphs import after, check_pure, fuse, simplify

Tensors = tuple[Tensor, ...]


@final
@dataclass(frozen=True, eq=False)
class Split:
    """A function of fixed tensors and a column, cut in two.

    Args:
        first: From the fixed tensors to what is kept.
        second: From what is kept and the column to the result.
    """

    first: GraphModule
    second: GraphModule
    parts: dict[tuple[int, int], Split] = field(default_factory=dict, init=False, repr=False)

    def prepare(self, fixed: Sequence[Tensor]) -> Tensors:
        """All that does not depend on the column.

        Args:
            fixed: Tensors of the shapes that were recorded.
        """
        with torch.inference_mode(False), torch.no_grad():
            return self.first(*fixed)

    def product(self, kept: Tensors, column: Sequence[Tensor | None]) -> Tensors:
        """The function's value for one column.

        Args:
            kept: What ``prepare`` returned.
            column: Tensors of the shapes that were recorded; ``None`` for those that no result needs.
        """
        with torch.inference_mode(False), torch.no_grad():
            return self.second(*kept, *column)

    def only(self, start: int, stop: int) -> Split:
        """The same cut of a function that returns some of the results: the second half does what they need.

        Args:
            start: First of them.
            stop: One past the last.

        Example:
            >>> both = split(lambda a, v, u: (a * v, a + u), [torch.ones(2)], [torch.ones(2), torch.ones(2)])
            >>> sums = both.only(1, 2)
            >>> sums.product(sums.prepare([torch.ones(2)]), [None, torch.ones(2)])
            (tensor([2., 2.]),)
        """
        if (start, stop) not in self.parts:
            graph = Graph()
            whole: Any = graph.graph_copy(self.second.graph, {})
            graph.output(whole[start:stop])
            graph.eliminate_dead_code()
            self.parts[start, stop] = Split(self.first, _module(self.second, graph))
        return self.parts[start, stop]


def split(function: Callable[..., Tensors], fixed: Sequence[Tensor], column: Sequence[Tensor]) -> Split:
    """Record a function of tensors and cut it.

    Nothing is computed: the function sees tensors without numbers. All tensors it depends on must be arguments; others
    are held by reference.

    Args:
        function: ``function(*fixed, *column)``, a tuple of tensors.
        fixed: What stays from column to column.
        column: What does not.

    Returns:
        The two halves; they hold for tensors of the same shapes and dtypes.

    Raises:
        UnsupportedError: If the function cannot be recorded, or what was recorded does not hold for other numbers.

    Example:
        >>> both = split(lambda a, v: (torch.exp(a) * v,), [torch.zeros(2)], [torch.zeros(2)])
        >>> both.product(both.prepare([torch.zeros(2)]), [torch.ones(2)])
        (tensor([1., 1.]),)
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
    return Split(*cut(module, len(column)))


def cut(module: GraphModule, columns: int) -> tuple[GraphModule, GraphModule]:
    """Two graphs that do the work of one: what does not depend on the last ``columns`` inputs, and the rest.

    Returns:
        The first takes the other inputs and returns all that the second needs of it; the second takes that, and then
        the last inputs, and returns what the graph did.
    """
    nodes = list(module.graph.nodes)
    late = after(module.graph, columns)
    kept = [node for node in nodes if node not in late and any(user in late for user in node.users)]
    first, second = Graph(), Graph()
    copies: dict[Node, Node] = {}
    for node in nodes:
        if node not in late:
            copies[node] = first.node_copy(node, copies.__getitem__)
    first.output(tuple(copies[node] for node in kept))
    copies = {node: second.placeholder(f"kept_{number}") for number, node in enumerate(kept)}
    for node in nodes:
        if node in late:
            copies[node] = second.node_copy(node, copies.__getitem__)
    return _module(module, first), _module(module, second)


def held_bytes(tensors: tuple[Any, ...], given: tuple[Tensor, ...] = ()) -> int:
    """Bytes of memory that tensors keep alive, each storage counted once, those of ``given`` not at all."""
    known = {tensor.untyped_storage().data_ptr() for tensor in given}
    found = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if isinstance(t, Tensor)}
    return sum(size for pointer, size in found.items() if pointer not in known)


def _module(module: GraphModule, graph: Graph) -> GraphModule:
    constants = {str(node.target): getattr(module, str(node.target)) for node in graph.nodes if node.op == "get_attr"}
    return GraphModule(constants, graph)
