"""A function of some examples as a graph of plain PyTorch, for any number of examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functionalize
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from lapwing.ground.data.inputs import Inputs, count, over_tensors, take, tensors
from lapwing.ground.errors import UnsupportedError, reason_of
from lapwing.jacobian.network.serving import ALONE
from lapwing.jacobian.products.tracing.simplification import check_pure, simplify

Function = Callable[[Inputs], dict[str, Tensor]]

OTHER = 3
"""Examples that a module is tried with; it is recorded with others."""


def recorded(function: Function, inputs: Inputs) -> GraphModule:
    """A function as a module that needs nothing but PyTorch: what it computes with is in buffers.

    Args:
        function: Of some examples, without checks of numbers; called once before it is recorded, and once of three.
        inputs: Two examples or more; their number is left open, all other sizes are kept.

    Returns:
        A module that takes the tensors among the inputs, in order.

    Raises:
        UnsupportedError: If it cannot be recorded, or what was recorded does not hold for other numbers.

    Cost:
        Seconds; what the function keeps, once.

    Example:
        >>> module = recorded(lambda x: {"doubled": 2 * x}, torch.zeros(2, 3))
        >>> module(torch.ones(1, 3))["doubled"].tolist()
        [[2.0, 2.0, 2.0]]
    """
    from torch._subclasses.fake_tensor import FakeTensorMode  # a second to import
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    given = tensors(inputs)
    n = count(inputs)
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)

    def without_numbers(value: Tensor) -> Tensor:
        sizes = [DimDynamic.STATIC] * value.ndim
        if value.ndim and len(value) == n:
            sizes[0] = DimDynamic.DYNAMIC
        context: Any = StatelessSymbolicContext(dynamic_sizes=sizes)
        return mode.from_tensor(value, symbolic_context=context)

    def of_tensors(*values: Tensor) -> dict[str, Tensor]:
        parts = iter(values)
        return function(over_tensors(lambda value: next(parts) if isinstance(value, Tensor) else value, inputs))

    with torch.no_grad():
        of_tensors(*given)
    options: Any = {"tracing_mode": "symbolic", "_allow_non_fake_inputs": True}
    blank = [without_numbers(value.detach()) for value in given]
    try:
        with ALONE, torch.inference_mode(False), torch.enable_grad():
            first: Any = make_fx(of_tensors, **options)(*blank)
        module: GraphModule = make_fx(functionalize(first), **options)(*blank)  # nothing is written to
        module = folded(module)
        check_pure(module.graph)
        simplify(module.graph)
    except Exception as reason:
        said = f"{type(reason).__name__}: {reason_of(reason)}"
        hint = "weights=LastLayer(), whose network is called and not differentiated"
        raise UnsupportedError("a network whose predictions can be recorded", said, hint) from reason
    module.recompile()
    check_number(module, function, take(inputs, torch.arange(OTHER) % n))
    return module


def check_number(module: GraphModule, function: Function, inputs: Inputs) -> None:
    """Refuses a module that gives other shapes than its function for another number of examples.

    Args:
        module: What was recorded.
        function: Of what.
        inputs: Some examples, not as many as it was recorded with.

    Raises:
        UnsupportedError: If it does, or fails on them.
    """
    with torch.no_grad():
        expected = {name: list(value.shape) for name, value in function(inputs).items()}
        try:
            found = {name: list(value.shape) for name, value in module(*tensors(inputs)).items()}
        except Exception as reason:
            raise _for_one_number(f"{type(reason).__name__}: {reason_of(reason)}") from reason
    for name, shape in expected.items():
        if found[name] != shape:
            raise _for_one_number(f"{name} of shape {found[name]} for {count(inputs)} examples, and not {shape}")


def _for_one_number(got: str) -> UnsupportedError:
    """What is said of a function of which the number of examples was recorded."""
    hint = "weights=LastLayer(), or other outputs="
    return UnsupportedError("predictions that can be recorded for every number of examples", got, hint)


def folded(module: GraphModule) -> GraphModule:
    """The same, what does not depend on its inputs computed and put into buffers."""
    copied = {name: value.detach().clone() for name, value in module.named_buffers()}  # a step may write to one
    known = dict[Node, Any]()
    for node in module.graph.nodes:
        if node.op == "get_attr":
            known[node] = copied[str(node.target)]
        elif node.op == "call_function" and all(each in known for each in node.all_input_nodes):
            known[node] = node.target(*_values(node.args, known), **_values(node.kwargs, known))

    root = nn.Module()
    graph = Graph()
    copies = dict[Node, Node]()
    for node in module.graph.nodes:
        if node not in known:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        elif any(user not in known for user in node.users):
            name = f"constant{len(copies)}"
            root.register_buffer(name, known[node].contiguous())
            copies[node] = graph.get_attr(name)
            copies[node].meta["val"] = known[node]
    found = GraphModule(root, graph)
    found.graph.eliminate_dead_code()
    found.recompile()
    return found


def _values(arguments: Any, known: dict[Node, Any]) -> Any:
    """Arguments of a node with tensors in place of nodes."""
    return map_arg(arguments, known.__getitem__)
