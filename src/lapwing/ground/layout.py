"""The one order of the weights: named parameters on one side, flat vectors on the other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import TypeAlias, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.errors import DataError, ShapeError
from lapwing.ground.precision import wide, wide_like

Params: TypeAlias = dict[str, Tensor]
"""Named parameters of a network, in the order of ``named_parameters``."""


@final
@dataclass(frozen=True)
class Layout:
    """Names and shapes of the parameters, in the order in which they fill a flat vector of ``d`` weights.

    Frozen and hashable: two layouts are equal when their names and shapes are.

    Args:
        names: Parameter names, as ``named_parameters`` gives them.
        shapes: Shape of each.

    Example:
        >>> layout = Layout.of({"fc.weight": torch.zeros(2, 3), "fc.bias": torch.zeros(2)})
        >>> layout.size, layout.slices["fc.bias"], layout.layers
        (8, slice(6, 8, None), (('fc.weight', 'fc.bias'),))
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, params: Params) -> Layout:
        """The layout of named parameters, in their own order.

        Args:
            params: Named tensors.

        Raises:
            DataError: If there are none.
        """
        if not params:
            raise DataError(
                "at least one parameter",
                "none",
                "a model with trainable parameters (requires_grad=True)",
            )
        return cls(tuple(params), tuple(tuple(value.shape) for value in params.values()))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of weights in each parameter."""
        return tuple(prod(shape) for shape in self.shapes)

    @cached_property
    def size(self) -> int:
        """Number of weights in all, ``d``."""
        return sum(self.sizes)

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Where each parameter lies in the flat vector."""
        ends = accumulate(self.sizes)
        return {name: slice(end - size, end) for name, size, end in zip(self.names, self.sizes, ends, strict=True)}

    @cached_property
    def layers(self) -> tuple[tuple[str, ...], ...]:
        """Names grouped by the module that owns them, in order of first appearance.

        The module is the text before the last dot; a bare name is a layer of its own.
        """
        groups: dict[str, list[str]] = {}
        for name in self.names:
            owner, dot, _ = name.rpartition(".")
            groups.setdefault(owner + dot or name, []).append(name)
        return tuple(tuple(group) for group in groups.values())

    @cached_property
    def layer_index(self) -> Int[Tensor, " d"]:
        """Layer number of each weight, ``[d]`` on the CPU: ``layers[layer_index[i]]`` owns weight ``i``."""
        owner = {name: number for number, names in enumerate(self.layers) for name in names}
        number = torch.tensor([owner[name] for name in self.names], device="cpu")
        return number.repeat_interleave(torch.tensor(self.sizes, device="cpu"))

    def flatten(self, params: Params) -> Float[Tensor, " d"]:
        """Named parameters as one vector ``[d]``; differentiable.

        Args:
            params: Tensors with this layout's names and shapes, in any order.
        """
        return torch.cat([params[name].reshape(-1) for name in self.names])

    def unflatten(self, vector: Float[Tensor, "d ..."]) -> Params:
        """Named tensors ``[*shape]`` of a vector ``[d]``, ``[*shape, k]`` of a block of columns ``[d, k]``.

        Args:
            vector: Flat weights, or a block of them.

        Returns:
            Views of ``vector`` where its strides allow them.

        Raises:
            ShapeError: If the first dimension is not ``d``.

        Example:
            >>> layout = Layout.of({"a": torch.zeros(2), "b": torch.zeros(1, 2)})
            >>> layout.unflatten(torch.arange(4.0))["b"]
            tensor([[2., 3.]])
        """
        if vector.ndim not in (1, 2) or vector.shape[0] != self.size:
            raise ShapeError(
                f"a flat vector [{self.size}] or a block [{self.size}, k]",
                f"shape {list(vector.shape)}",
                "layout.flatten(params), or the transpose of rows [s, d]",
            )
        tail = tuple(vector.shape[1:])
        return {
            name: vector[self.slices[name]].reshape(shape + tail)
            for name, shape in zip(self.names, self.shapes, strict=True)
        }


def together(pieces: Iterable[Tensor], dim: int = 0) -> Tensor:
    """Pieces one after the other on an axis; a single one is not copied.

    Example:
        >>> x = torch.zeros(2, 3)
        >>> together([x]) is x, together([x, x], 1).shape
        (True, torch.Size([2, 6]))
    """
    held = list(pieces)
    return held[0] if len(held) == 1 else torch.cat(held, dim)


def summed(parts: Iterable[Tensor], like: Tensor) -> Float[Tensor, "*shape"]:
    """The sum of what batches give, in float64: of float32, it rounds to the same number in any order.

    Args:
        parts: Of each batch.
        like: Shaped as they are.

    Example:
        >>> summed([torch.tensor(1.0), torch.tensor(2.0)], torch.tensor(0.0))
        tensor(3., dtype=torch.float64)
    """
    total: Tensor | None = None
    for part in parts:
        total = wide(part, copy=True) if total is None else total.add_(wide(part))
    return torch.zeros(like.shape, **wide_like(like)) if total is None else total
