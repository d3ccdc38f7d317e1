"""A function cut in two gives what it gave; the half for columns repeats nothing, and the whole keeps little."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp
from torch.fx import GraphModule

from lapwing.ground.errors import UnsupportedError
from lapwing.jacobian.products.tracing.split import Groups, held_bytes, split


def operations(module: GraphModule) -> list[str]:
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


def test_each_half_does_its_own(generator: torch.Generator) -> None:
    def function(a: Tensor, w: Tensor, v: Tensor) -> Groups:
        return (torch.tanh(a @ w) @ v, w.sum() * v), (a.sum(0),)

    a, w, v = (torch.randn(3, 3, generator=generator, dtype=torch.float64) for _ in range(3))
    halves = split(function, [a, w], [v])
    assert "aten.tanh.default" in operations(halves.first) and "aten.tanh.default" not in operations(halves.seconds[0])
    assert not operations(halves.seconds[1])
    for _ in range(2):
        other = [torch.randn(3, 3, generator=generator, dtype=torch.float64) for _ in range(3)]
        kept = halves.prepare(other[:2])
        for group, expected in enumerate(function(*other)):
            torch.testing.assert_close(halves.product(kept, other[2:], group), expected)


def test_nothing_is_computed_while_recording() -> None:
    huge = torch.ones(1).expand(10**6, 10**6)  # their product would take a week
    halves = split(lambda a, v: ((a @ v,),), [huge], [huge])
    assert [node for node in halves.seconds[0].graph.nodes if node.op == "call_function"]


def test_what_decides_by_numbers_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="whose operations can be recorded"):
        split(lambda a, v: ((v if float(a.sum()) > 0 else -v,),), [torch.ones(2)], [torch.ones(2)])


def test_writing_in_place_is_recorded_as_what_it_means() -> None:
    def function(a: Tensor, v: Tensor) -> Groups:
        h = a.exp()
        h.mul_(2.0)
        w = v.clone()
        w[0] = 0.0
        return ((h * w,),)

    halves = split(function, [torch.ones(2)], [torch.ones(2)])
    torch.testing.assert_close(
        halves.product(halves.prepare([torch.zeros(2)]), [torch.tensor([1.0, 3.0])])[0], torch.tensor([0.0, 6.0])
    )


def network_product(model: nn.Module) -> Callable[..., Groups]:
    """``Jᵀ J v`` as a function of weights, statistics, inputs and a change of the weights."""
    names, buffers = [name for name, _ in model.named_parameters()], [name for name, _ in model.named_buffers()]

    def function(*values: Tensor) -> Groups:
        rest = iter(values)
        params, known = {name: next(rest) for name in names}, {name: next(rest) for name in buffers}
        x, change = next(rest), {name: next(rest) for name in names}
        f = lambda at: functional_call(model, {**known, **at}, (x,))  # noqa: E731
        pulled = vjp(f, params)[1](jvp(f, (params,), (change,))[1])[0]
        return (tuple(pulled.values()),)

    return function


def test_a_batch_norm_keeps_one_tensor_and_its_adjoint_is_right(generator: torch.Generator) -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4, eps=0.1), nn.Tanh()).double().eval()
    norm = model[1]
    for value in (norm.weight, norm.bias, norm.running_mean):
        nn.init.normal_(value, generator=generator)
    nn.init.uniform_(norm.running_var, 0.5, 2.0, generator=generator)
    weights = [value.detach() for value in (*model.parameters(), *model.buffers())]
    x = torch.randn(8, 2, 9, 9, generator=generator, dtype=torch.float64)
    change = [torch.randn(value.shape, generator=generator, dtype=torch.float64) for value in model.parameters()]
    function = network_product(model)
    halves = split(function, [*weights, x], change)
    kept = halves.prepare([*weights, x])
    torch.testing.assert_close(halves.product(kept, change), *function(*weights, x, *change))
    activation = 8 * 4 * 7 * 7 * 8
    assert held_bytes(kept, (*weights, x)) <= 2.2 * activation  # the normalised input, and tanh or its derivative


def test_weights_are_inputs_not_constants() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    weights = [value.detach() for value in model.parameters()]
    x = torch.ones(4, 2, dtype=torch.float64)
    halves = split(network_product(model), [*weights, x], weights)
    for half in (halves.first, *halves.seconds):
        assert not [node for node in half.graph.nodes if node.op == "get_attr"]
    doubled = [2 * value for value in weights]
    (expected,) = network_product(model)(*doubled, x, *weights)
    torch.testing.assert_close(halves.product(halves.prepare([*doubled, x]), weights), expected)


def test_a_tensor_given_twice_is_two_inputs() -> None:
    a = torch.ones(2)
    halves = split(lambda a, b, v: ((a * v - 2 * b,),), [a, a], [a])
    b = torch.tensor([2.0, 3.0])
    torch.testing.assert_close(halves.product(halves.prepare([a, b]), [4 * a])[0], 4 * a - 2 * b)


def test_memory_is_counted_once_and_without_what_was_there() -> None:
    a, b = torch.zeros(10), torch.zeros(7)
    assert held_bytes((a, a.view(2, 5), a[:1], b, 3)) == 68
    assert held_bytes((a[2:], b), (a,)) == 28
