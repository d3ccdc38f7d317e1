"""Norms: what they make of their input is multiplied and shifted entry by entry, or channel by channel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import UnsupportedError
from lapwing.jacobian.layers.base import Call, Cost, Layer, LayerKind, Sizes, cost_of_rows, examples_first


@final
@dataclass(frozen=True, eq=False)
class Norm(LayerKind):
    """``layer_norm``, ``batch_norm`` and ``group_norm``: a Jacobian as small as the parameters, explicit in g."""

    kronecker = False

    @classmethod
    def input_and_options(cls, func: Callable[..., Any], given: dict[str, Any]) -> tuple[Tensor, int]:
        """See ``LayerKind``: the normalised input, and how many last axes the parameters have, 0 for channels.

        Raises:
            UnsupportedError: If that depends on the other examples.
        """
        return normalised_input(func, given), len(given.get("normalized_shape", ()))

    @classmethod
    def kept(cls, layer: Layer, call: Call, g: Tensor, n: int) -> Tensor:
        """See ``LayerKind``: the Jacobian."""
        parts: list[Tensor] = []
        if layer.weight is not None:
            parts.append(affine_sum(g * call.input, layer.axis, n, call.options))
        if layer.bias is not None:
            parts.append(affine_sum(g, layer.axis, n, call.options))
        return torch.cat(parts, dim=-1)

    @classmethod
    def of(cls, layer: Layer, calls: list[Call], grads: list[Tensor], n: int) -> Norm:
        """See ``LayerKind``."""
        return cls(layer.weight, layer.bias, sum(grads[1:], start=grads[0]))

    @classmethod
    def sizes(cls, call: Call, n: int, weights: int) -> Sizes:
        """See ``LayerKind``."""
        return Sizes(0, call.input.numel() // n)

    def rows(self) -> Float[Tensor, "n k d"]:
        """The explicit Jacobian."""
        return self.g

    def cost(self, cotangents: int) -> Cost:
        """See ``Factor``."""
        return cost_of_rows(self.g, cotangents)


def normalised_input(func: Callable[..., Tensor], given: dict[str, Any]) -> Tensor:
    """What a norm makes of its input before weight and bias.

    Raises:
        UnsupportedError: If that depends on the other examples.
    """
    if given.get("training"):
        raise UnsupportedError(
            "outputs that depend on one example each",
            "a batch norm that uses the statistics of the batch even in eval mode",
            "BatchNorm with track_running_stats=True",
        )
    with torch.no_grad():
        return func(**{**given, "weight": None, "bias": None}).detach()


def affine_sum(x: Tensor, axis: int, n: int, width: int) -> Float[Tensor, "n d"]:
    """Sum over all that shares an affine parameter: the last ``width`` axes are its own, or the channels if 0."""
    if width == 0:
        return x.flatten(2).sum(-1) if x.ndim > 2 else x
    return examples_first(x, axis, n, width).sum(1).flatten(1)
