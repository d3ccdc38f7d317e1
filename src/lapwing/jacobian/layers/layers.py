"""Layer factors of a batch: one forward pass, one backward pass a cotangent, J never built."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data import count
from lapwing.ground.errors import UnsupportedError
from lapwing.ground.types import Inputs, Params
from lapwing.jacobian.layers.capture import Call, Capture, Kind
from lapwing.jacobian.layers.columns import Columns, ConvColumns, DenseColumns, joined
from lapwing.jacobian.layers.factors import Factor, Lookup, Outer, Rows
from lapwing.jacobian.network.loose import Way, loose_rows
from lapwing.jacobian.network.network import Network

NORMS = ("channel_norm", "layer_norm")
"""Layers whose uncertain parameters are element-wise: their Jacobian is as small as they are."""


FEW, STRETCH = 16, 8
"""A chunk of fewer examples wastes the threads: the budget may stretch this many times to hold so many."""


@final
@dataclass(frozen=True)
class Layer:
    """One weight (and bias) whose layer factors are known.

    Args:
        kind: Family of the layer function.
        weight: Name of the weight, ``None`` where only the bias is uncertain.
        bias: Name of the bias, ``None`` where there is none or it is not uncertain.
        axis: Axis of the examples in the layer's input and output.
    """

    kind: Kind
    weight: str | None
    bias: str | None
    axis: int

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters, weight first."""
        return tuple(name for name in (self.weight, self.bias) if name is not None)

    def owns(self, call: Call) -> bool:
        """Whether the call used this layer's parameters."""
        return (call.weight, call.bias) == (self.weight, self.bias)


@final
@dataclass(frozen=True)
class Survey:
    """What is known of a network's layers.

    Args:
        layers: Layers with factors, in order of first use.
        loose: Parameters without; their Jacobian comes from automatic differentiation.
        output: Shape of the outputs of one example.
        floats: Numbers one example occupies: for each cotangent, and beside them.
        way: How the Jacobian of loose parameters is made.
    """

    layers: tuple[Layer, ...]
    loose: tuple[str, ...]
    output: torch.Size
    floats: tuple[int, int]
    way: Way = "at once"

    @cached_property
    def names(self) -> frozenset[str]:
        """All parameters that have layer factors."""
        return frozenset(name for layer in self.layers for name in layer.names)

    def bytes(self, cotangents: int, itemsize: int, extra: int = 0, roots: int = 0) -> int:
        """What the factors of one example take, with ``extra`` numbers a cotangent and ``roots`` beside them."""
        each, beside = self.floats
        return max(itemsize * (cotangents * (each + extra) + beside + roots), 1)

    def chunk(self, cotangents: int, itemsize: int, budget: int, extra: int = 0, roots: int = 0) -> int:
        """Examples that fit the byte budget; see ``bytes``."""
        per_example = self.bytes(cotangents, itemsize, extra, roots)
        room = max(budget, min(FEW * per_example, STRETCH * budget))
        return max(1, min(room // per_example, 4096))


@final
@dataclass(frozen=True, eq=False)
class Pass:
    """The forward pass of a chunk of examples, ready to be pulled back.

    Args:
        network: The network.
        survey: What is known of its layers.
        inputs: A chunk of n examples.
    """

    network: Network
    survey: Survey
    inputs: Inputs

    @cached_property
    def _leaves(self) -> Params:
        return leaves(self.network)

    @cached_property
    def _forward(self) -> tuple[Tensor, list[Call]]:
        return captured(self.network, self.inputs, self._leaves)

    @property
    def outputs(self) -> Tensor:
        """Outputs of the network, ``[n, *event, c]``."""
        return self._forward[0].detach()

    def factors(self, cotangents: Float[Tensor, "k n ..."]) -> Iterator[Factor]:
        """The factors of every uncertain parameter, layer by layer.

        Args:
            cotangents: Directions to pull back, each of the shape of the outputs.

        Yields:
            One factor a layer, then one for each parameter without layer factors.

        Cost:
            k backward passes through the activations.
        """
        yield from self.layer_factors(cotangents)
        loose = loose_rows(self.network, self.survey.loose, self.inputs, cotangents, self.survey.way)
        for name, rows in loose.items():
            yield Rows((name,), rows)

    def gradient(self, cotangent: Float[Tensor, "n ..."]) -> Float[Tensor, " d"]:
        """``sum_n J_nᵀ u_n`` in the uncertain weights: one backward pass."""
        values = list(self._leaves.values())
        outputs = self._forward[0]
        grads = torch.autograd.grad(
            outputs, values, cotangent.to(outputs), retain_graph=True, allow_unused=True, materialize_grads=True
        )
        flat = self.network.layout.flatten(dict(zip(self._leaves, grads, strict=True)))
        return flat if self.network.index is None else flat[self.network.index]

    def layer_factors(self, cotangents: Float[Tensor, "k n ..."]) -> list[Factor]:
        """The factors of the layers alone."""
        outputs, calls = self._forward
        used = [call for call in calls if any(layer.owns(call) for layer in self.survey.layers)]
        if not used:
            return []
        owners = [next(layer for layer in self.survey.layers if layer.owns(call)) for call in used]
        edges = [call.edge for call in used]
        held: list[Tensor] = []
        for k, cotangent in enumerate(cotangents):
            pulled = torch.autograd.grad(outputs, edges, cotangent.to(outputs), retain_graph=True, allow_unused=True)
            for i, (layer, call, g) in enumerate(zip(owners, used, pulled, strict=True)):
                part = self._kept(layer, call, outputs.new_zeros(call.shape) if g is None else g)
                if k == 0:
                    held.append(part.new_empty(part.shape[0], len(cotangents), *part.shape[1:]))
                held[i][:, k] = part
        return [self._factor(layer, used, held) for layer in self.survey.layers]

    def _kept(self, layer: Layer, call: Call, g: Tensor) -> Tensor:
        """What is kept of a gradient at a layer's output: for norms, whose Jacobian is small, that; else all of it."""
        if layer.kind not in NORMS:
            return g
        width = self.network.params[layer.names[0]].ndim if layer.kind == "layer_norm" else 0
        n = count(self.inputs)
        weight = [] if layer.weight is None else [affine_sum(g * call.input, layer.axis, n, width)]
        bias = [] if layer.bias is None else [affine_sum(g, layer.axis, n, width)]
        return torch.cat([*weight, *bias], dim=-1)

    def _factor(self, layer: Layer, calls: list[Call], gradients: list[Tensor]) -> Factor:
        own = [i for i, call in enumerate(calls) if layer.owns(call)]
        if not own:
            raise UnsupportedError(
                f"a network that uses {', '.join(layer.names)} in every batch",
                "a batch that went another way",
                "weights=Names(...) or requires_grad_(False) to leave that layer out",
            )
        n = count(self.inputs)
        uses = [calls[i] for i in own]
        grads = [gradients[i] for i in own]
        if layer.kind in NORMS:
            return Rows(layer.names, torch.stack(grads).sum(0) if len(grads) > 1 else grads[0])
        if layer.kind == "embedding":
            index = torch.cat([examples_first(call.input, layer.axis, n, 0) for call in uses], dim=1)
            g = torch.cat([by_example(part, layer.axis, n) for part in grads], dim=2)
            rows, width = self.network.params[layer.names[0]].shape
            return Lookup(layer.names[0], (rows, width), index, g, uses[0].padding)
        columns = joined([as_columns(call, layer.axis, n) for call in uses])
        options = uses[0].options
        if options is not None:
            parts = [part.flatten(3).unflatten(2, (options.groups, -1)) for part in grads]
        else:
            parts = [by_example(part, layer.axis, n).mT.unsqueeze(2) for part in grads]
        return Outer(layer.weight, layer.bias, columns, parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1))


def affine_sum(x: Tensor, axis: int, n: int, width: int) -> Float[Tensor, "n d"]:
    """Sum over all that shares an affine parameter: the last ``width`` axes are its own, or the channels if 0."""
    if width == 0:
        return x.flatten(2).sum(-1) if x.ndim > 2 else x
    return examples_first(x, axis, n, width).sum(1).flatten(1)


def by_example(x: Tensor, axis: int, n: int) -> Float[Tensor, "n k t f"]:
    """Gradients with the cotangents on axis 1, as examples, cotangents, all that shares the weight, features."""
    k, features = x.shape[1], x.shape[-1]
    x = x.movedim(1, 0).movedim(axis + 1, 1)
    return x.unflatten(1, (n, -1)).transpose(0, 1).reshape(n, k, -1, features)


def examples_first(x: Tensor, axis: int, n: int, features: int) -> Tensor:
    """``x`` as ``[n, t, *features]``: examples first, everything that shares the weight in one axis."""
    x = x.movedim(axis, 0)
    return x.reshape(n, -1, *x.shape[x.ndim - features :])


def as_columns(call: Call, axis: int, n: int) -> Columns:
    """The input of a call as columns."""
    if call.options is not None:
        return ConvColumns(call.input, call.options)
    return DenseColumns(examples_first(call.input, axis, n, 1).mT.unsqueeze(1))


def leaves(network: Network) -> Params:
    """The network's parameters as fresh leaves that autograd tracks."""
    return {name: value.detach().requires_grad_() for name, value in network.params.items()}


def captured(network: Network, inputs: Inputs, params: Params) -> tuple[Tensor, list[Call]]:
    """Outputs of a forward pass and the layer calls it made."""
    with torch.inference_mode(False), torch.enable_grad(), Capture(params) as capture:
        outputs = network(inputs, params)
    return outputs, capture.calls
