"""Parameters that every example has the same copy of: position embeddings that are added, class tokens.

The gradient of a copy is that of each example; without it reverse mode knows only the sum over the examples.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from jaxtyping import Float
from torch import Tensor

from lapwing.jacobian.layers.base import Call, Cost, Layer, LayerKind, Sizes, cost_of_rows


@final
@dataclass(frozen=True, eq=False)
class Broadcast(LayerKind):
    """``torch.add`` of a parameter, and ``Tensor.expand``: its Jacobian is explicit in g, as small as the parameter."""

    kronecker = False

    @classmethod
    def signature(cls, func: Callable[..., Any]) -> inspect.Signature:
        """See ``LayerKind``; C++ hides it."""

        def add(input: Any, other: Any, *, alpha: Any = 1, out: Any = None) -> None: ...

        def expand(input: Any, *size: Any, **options: Any) -> None: ...

        return inspect.signature(expand if func.__name__ == "expand" else add)

    @classmethod
    def parameters(cls, given: dict[str, Any]) -> tuple[object, object]:
        """See ``LayerKind``: what is added, where it is a parameter itself."""
        other = given.get("other")
        return (other if is_leaf(other) else given["input"]), None

    @classmethod
    def input_and_options(cls, func: Callable[..., Any], given: dict[str, Any]) -> tuple[Tensor, None]:
        """See ``LayerKind``: the parameter."""
        parameter = cls.parameters(given)[0]
        assert isinstance(parameter, Tensor)
        return parameter.detach(), None

    @classmethod
    def kept(cls, layer: Layer, call: Call, g: Tensor, n: int) -> Float[Tensor, "n d"]:
        """See ``LayerKind``: the Jacobian, summed over the copies that one example has."""
        shape = (1,) * (g.ndim - call.input.ndim) + tuple(call.input.shape)
        copies = g.movedim(layer.axis, 0).unflatten(0, (n, -1)).sum(1)
        sizes = (*shape[: layer.axis], *shape[layer.axis + 1 :])
        repeated = [1 + axis for axis, size in enumerate(sizes) if size == 1]
        return (copies.sum(repeated) if repeated else copies).reshape(n, -1)

    @classmethod
    def of(cls, layer: Layer, calls: list[Call], grads: list[Tensor], n: int) -> Broadcast:
        """See ``LayerKind``."""
        return cls(layer.weight, None, sum(grads[1:], start=grads[0]))

    @classmethod
    def sizes(cls, call: Call, n: int, weights: int) -> Sizes:
        """See ``LayerKind``."""
        return Sizes(weights, 0)

    def rows(self) -> Float[Tensor, "n k d"]:
        """The explicit Jacobian."""
        return self.g

    def cost(self, cotangents: int) -> Cost:
        """See ``Factor``."""
        return cost_of_rows(self.g, cotangents)


def is_leaf(value: object) -> bool:
    """Whether something is a parameter that autograd tracks, not made from others."""
    return isinstance(value, Tensor) and value.requires_grad and value.is_leaf
