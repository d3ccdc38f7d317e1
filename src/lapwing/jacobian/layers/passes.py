"""The forward pass of a batch, pulled back layer by layer: one backward pass a cotangent, J never built."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data import count
from lapwing.ground.errors import UnsupportedError
from lapwing.ground.types import Inputs, Params
from lapwing.jacobian.layers.capture import NORMS, Call, Layer, Survey, captured, leaves
from lapwing.jacobian.layers.columns import Columns, ConvColumns, DenseColumns, joined
from lapwing.jacobian.layers.factors import Factor, Outer, Rows
from lapwing.jacobian.layers.lookup import Lookup
from lapwing.jacobian.layers.loose import loose_rows
from lapwing.jacobian.network.module import ordinary
from lapwing.jacobian.network.network import Network
from lapwing.likelihoods import Likelihood
from lapwing.likelihoods.base import COLUMNS


@final
@dataclass(frozen=True, eq=False)
class Pass:
    """The forward pass of a chunk of examples, ready to be pulled back.

    Args:
        network: The network.
        survey: What is known of its layers.
        inputs: A chunk of n examples.
        likelihood: Says where the outputs' axes are; ``None`` takes them as the network returns them.
    """

    network: Network
    survey: Survey
    inputs: Inputs
    likelihood: Likelihood | None = None

    @cached_property
    def _leaves(self) -> Params:
        return leaves(self.network)

    @cached_property
    def _forward(self) -> tuple[Tensor, list[Call]]:
        return captured(self.network, self.inputs, self._leaves)

    @property
    def outputs(self) -> Tensor:
        """Canonical outputs, ``[n, *event, c]``."""
        outputs = self._forward[0].detach()
        return outputs if self.likelihood is None else self.likelihood.canonical(outputs)

    def factors(self, cotangents: Float[Tensor, "k n ..."]) -> Iterator[Factor]:
        """The factors of every uncertain parameter, layer by layer.

        Args:
            cotangents: Directions to pull back, each of the shape of the canonical outputs.

        Yields:
            One factor a layer, then one for each parameter without layer factors.

        Cost:
            k backward passes through the activations.
        """
        yield from self.layer_factors(cotangents)
        yield from self.loose_factors(cotangents)

    def loose_factors(self, cotangents: Float[Tensor, "k n ..."]) -> list[Factor]:
        """The explicit Jacobian of the parameters without layer factors."""
        survey = self.survey
        loose = loose_rows(self.network, survey.loose, self.inputs, self._returned(cotangents), survey.way)
        return [Rows((name,), rows) for name, rows in loose.items()]

    def _returned(self, cotangents: Tensor) -> Tensor:
        """Cotangents of what the network returned."""
        return cotangents if self.likelihood is None else self.likelihood.returned(cotangents)

    def gradient(self, cotangent: Float[Tensor, "n ..."]) -> Float[Tensor, " d"]:
        """``sum_n J_nᵀ u_n`` in the uncertain weights: one backward pass."""
        values = list(self._leaves.values())
        target = along(self._forward[0], self._returned(cotangent[None])[0])
        grads = torch.autograd.grad(target, values, retain_graph=True, allow_unused=True, materialize_grads=True)
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
        for k, cotangent in enumerate(self._returned(cotangents)):
            pulled = torch.autograd.grad(along(outputs, cotangent), edges, retain_graph=True, allow_unused=True)
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


def along(outputs: Tensor, cotangent: Tensor) -> Float[Tensor, ""]:
    """``⟨u, f⟩``, whose gradient is ``Jᵀ u``: autograd given u itself first imports sympy, which takes a second."""
    with torch.inference_mode(False), torch.enable_grad():
        return (outputs * ordinary(cotangent).to(outputs)).sum()


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


@final
@dataclass(frozen=True, eq=False)
class Layerwise:
    """``R = [u_nkᵀ J_n]``: the Jacobian of a chunk of n examples under k cotangents u, layer by layer.

    Args:
        network: The network.
        examples: Examples n.
        factors: One factor a layer, then those of parameters without layer factors.

    Cost:
        To build: one forward pass and k backward passes. A product: see ``Factor``.
    """

    network: Network
    examples: int
    factors: tuple[Factor, ...]

    @classmethod
    def of(cls, forward: Pass, cotangents: Float[Tensor, "k n ..."]) -> Layerwise:
        """The Jacobian of a forward pass under cotangents of the canonical outputs."""
        factors = forward.layer_factors(cotangents)
        made: list[Factor] = []
        while factors:  # one layer at a time is held in both forms
            made.append(factors.pop(0).for_products())
        return cls(forward.network, len(forward.outputs), (*made, *forward.loose_factors(cotangents)))

    @property
    def bytes(self) -> int:
        """Bytes the factors occupy."""
        return sum(tensor.numel() * tensor.element_size() for factor in self.factors for tensor in factor.held)

    def push(self, block: Float[Tensor, "d c"]) -> Float[Tensor, "n k c"]:
        """``R V``."""
        full = spread(self.network, block)
        return torch.cat([self._push(columns) for columns in full.split(COLUMNS, dim=1)], dim=-1)

    def pull(self, block: Float[Tensor, "n k c"]) -> Float[Tensor, "d c"]:
        """``Rᵀ U``."""
        pulled = torch.cat([self._pull(columns) for columns in block.split(COLUMNS, dim=-1)], dim=-1)
        return pulled if self.network.index is None else pulled[self.network.index]

    def _push(self, block: Tensor) -> Tensor:
        pieces = (factor.push(self._own(factor, block)) for factor in self.factors)
        total = next(pieces)
        for piece in pieces:
            total += piece
        return total

    def _pull(self, block: Tensor) -> Tensor:
        pulled = {factor.names: factor.pull(block) for factor in self.factors}
        values: dict[str, Tensor] = {}
        for names, value in pulled.items():
            sizes = [self.network.params[name].numel() for name in names]
            values.update(zip(names, value.split(sizes), strict=True))
        return torch.cat([values[name] for name in self.network.names])

    def _own(self, factor: Factor, block: Tensor) -> Tensor:
        """The rows of a block that belong to a factor's parameters."""
        slices = [self.network.layout.slices[name] for name in factor.names]
        if all(before.stop == after.start for before, after in pairwise(slices)):
            return block[slices[0].start : slices[-1].stop]
        return torch.cat([block[place] for place in slices])


def spread(network: Network, block: Float[Tensor, "d c"]) -> Float[Tensor, "all c"]:
    """A block over the uncertain weights as one over all weights of their parameters, zero elsewhere."""
    if network.index is None:
        return block
    return block.new_zeros(network.layout.size, block.shape[1]).index_copy_(0, network.index, block)


def square_sums(network: Network, factors: Iterable[Factor]) -> Float[Tensor, " all"]:
    """``sum_nk J²`` of all weights of the uncertain parameters, in the order of the flat vector."""
    total = network.like.new_zeros(network.layout.size)
    for factor in factors:
        for name, part in network.split(factor.names, factor.square_sum()).items():
            total[network.layout.slices[name]] += part
    return total


def jacobian_rows(network: Network, factors: Iterable[Factor]) -> Float[Tensor, "n k d"]:
    """The explicit Jacobian of a chunk in the uncertain weights, in the order of the flat vector."""
    parts: dict[str, Tensor] = {}
    for factor in factors:
        parts.update(network.split(factor.names, factor.rows()))
    rows = torch.cat([parts[name] for name in network.names], dim=-1)
    return rows if network.index is None else rows[..., network.index]
