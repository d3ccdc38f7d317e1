"""The forward pass of a batch, pulled back layer by layer: one backward pass a cotangent, J never built."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data import count
from lapwing.ground.errors import UnsupportedError
from lapwing.ground.types import Inputs, Params
from lapwing.jacobian.layers.capture import NORMS, Call, Layer, Survey, captured, leaves
from lapwing.jacobian.layers.factors import Factor, Outer, Rows, patches
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

        Raises:
            UnsupportedError: If a layer has no part in the outputs of this chunk.

        Cost:
            k backward passes through the activations.
        """
        yield from self.layer_factors(cotangents)
        survey = self.survey
        if survey.loose:
            returned = self._returned(cotangents)
            for name, rows in loose_rows(self.network, survey.loose, self.inputs, returned, survey.way).items():
                yield Rows(name, None, rows)

    def layer_factors(self, cotangents: Float[Tensor, "k n ..."]) -> Iterator[Factor]:
        """The factors of the layers alone; what one is made from is not held until the next."""
        outputs, calls = self._forward
        uses = [(layer, call) for layer in self.survey.layers for call in calls if layer.owns(call)]
        held: list[Tensor] = []
        for k, cotangent in enumerate(self._returned(cotangents) if uses else ()):
            edges = [call.edge for _, call in uses]
            pulled = torch.autograd.grad(along(outputs, cotangent), edges, retain_graph=True, allow_unused=True)
            for i, ((layer, call), g) in enumerate(zip(uses, pulled, strict=True)):
                part = self._kept(layer, call, outputs.new_zeros(call.shape) if g is None else g)
                if k == 0:
                    held.append(part.new_empty(part.shape[0], len(cotangents), *part.shape[1:]))
                held[i][:, k] = part
        for layer in self.survey.layers:
            own = [call for owner, call in uses if owner is layer]
            if not own:
                raise UnsupportedError(
                    f"a network that uses {', '.join(layer.names)} in every batch",
                    "a batch that went another way",
                    "weights=Names(...) or requires_grad_(False) to leave that layer out",
                )
            yield self._factor(layer, own, [held.pop(0) for _ in own])

    def gradient(self, cotangent: Float[Tensor, "n ..."]) -> Float[Tensor, " d"]:
        """``sum_n J_nᵀ u_n`` in the uncertain weights: one backward pass."""
        values = list(self._leaves.values())
        target = along(self._forward[0], self._returned(cotangent[None])[0])
        grads = torch.autograd.grad(target, values, retain_graph=True, allow_unused=True, materialize_grads=True)
        return self.network.joined(((name,), grad.flatten()) for name, grad in zip(self._leaves, grads, strict=True))

    def _returned(self, cotangents: Tensor) -> Tensor:
        """Cotangents of what the network returned."""
        return cotangents if self.likelihood is None else self.likelihood.returned(cotangents)

    def _kept(self, layer: Layer, call: Call, g: Tensor) -> Tensor:
        """What is kept of a gradient at a layer's output: for norms, whose Jacobian is small, that; else all of it."""
        if layer.kind not in NORMS:
            return g
        width = self.network.params[layer.names[0]].ndim if layer.kind == "layer_norm" else 0
        n = count(self.inputs)
        weight = [] if layer.weight is None else [affine_sum(g * call.input, layer.axis, n, width)]
        bias = [] if layer.bias is None else [affine_sum(g, layer.axis, n, width)]
        return torch.cat([*weight, *bias], dim=-1)

    def _factor(self, layer: Layer, calls: list[Call], grads: list[Tensor]) -> Factor:
        """A layer's factor; several uses of its weight count as positions of one."""
        n, axis = count(self.inputs), layer.axis
        if layer.kind in NORMS:
            return Rows(layer.weight, layer.bias, sum(grads[1:], start=grads[0]))
        if layer.kind == "conv":
            options = [call.options for call in calls if call.options is not None]
            g = at_positions([part.flatten(3).unflatten(2, (options[0].groups, -1)) for part in grads], -1)
            if len(calls) == 1:
                return Outer(layer.weight, layer.bias, g, calls[0].input, options[0])
            a = [patches(call.input, each) for call, each in zip(calls, options, strict=True)]
            return Outer(layer.weight, layer.bias, g, at_positions(a, -1))
        g = at_positions([by_example(part, axis, n) for part in grads], 2)
        if layer.kind == "embedding":
            index = at_positions([examples_first(call.input, axis, n, 0) for call in calls], 1)
            rows, width = self.network.params[layer.names[0]].shape
            return Lookup(layer.weight, None, g, (rows, width), index, calls[0].padding)
        a = at_positions([examples_first(call.input, axis, n, 1) for call in calls], 1)
        return Outer(layer.weight, layer.bias, g.mT.unsqueeze(2), a.mT.unsqueeze(1))


def along(outputs: Tensor, cotangent: Tensor) -> Float[Tensor, ""]:
    """``⟨u, f⟩``, whose gradient is ``Jᵀ u``: autograd given u itself first imports sympy, which takes a second."""
    with torch.inference_mode(False), torch.enable_grad():
        return (outputs * ordinary(cotangent).to(outputs)).sum()


def affine_sum(x: Tensor, axis: int, n: int, width: int) -> Float[Tensor, "n d"]:
    """Sum over all that shares an affine parameter: the last ``width`` axes are its own, or the channels if 0."""
    if width == 0:
        return x.flatten(2).sum(-1) if x.ndim > 2 else x
    return examples_first(x, axis, n, width).sum(1).flatten(1)


def at_positions(uses: list[Tensor], axis: int) -> Tensor:
    """What several uses of one weight have, as if they were positions of one use; that of one use itself."""
    return uses[0] if len(uses) == 1 else torch.cat(uses, axis)


def by_example(x: Tensor, axis: int, n: int) -> Float[Tensor, "n k t f"]:
    """Gradients with the cotangents on axis 1, as examples, cotangents, all that shares the weight, features."""
    return examples_first(x.movedim(1, -2), axis, n, 2).transpose(1, 2)


def examples_first(x: Tensor, axis: int, n: int, features: int) -> Tensor:
    """``x`` as ``[n, t, *features]``: examples first, everything that shares the weight in one axis."""
    x = x.movedim(axis, 0)
    return x.reshape(n, -1, *x.shape[x.ndim - features :])


@final
@dataclass(frozen=True, eq=False)
class Layerwise:
    """``R = [u_nkᵀ J_n]``: the Jacobian of a chunk of n examples under k cotangents u, layer by layer.

    Args:
        network: The network.
        factors: One factor a layer, then those of parameters without layer factors, each in the form for products.

    Cost:
        To build: one forward pass and k backward passes. A product: see ``Factor``.
    """

    network: Network
    factors: tuple[Factor, ...]

    @classmethod
    def of(cls, forward: Pass, cotangents: Float[Tensor, "k n ..."]) -> Layerwise:
        """The Jacobian of a forward pass under cotangents of the canonical outputs."""
        return cls(forward.network, tuple(factor.for_products() for factor in forward.factors(cotangents)))

    @property
    def examples(self) -> int:
        """Examples n."""
        return len(self.factors[0].g)

    @property
    def bytes(self) -> int:
        """Bytes the factors occupy."""
        return sum(tensor.nbytes for factor in self.factors for tensor in factor.held.values())

    def push(self, block: Float[Tensor, "d c"]) -> Float[Tensor, "n k c"]:
        """``R V``."""
        return torch.cat([self._push(columns) for columns in block.split(COLUMNS, dim=1)], dim=-1)

    def pull(self, block: Float[Tensor, "n k c"]) -> Float[Tensor, "d c"]:
        """``Rᵀ U``."""
        return torch.cat([self._pull(columns) for columns in block.split(COLUMNS, dim=-1)], dim=-1)

    def _push(self, block: Tensor) -> Tensor:
        full = self.network.spread(block)
        pieces = (factor.push(self.network.part(factor.names, full)) for factor in self.factors)
        return reduce(Tensor.add_, pieces)

    def _pull(self, block: Tensor) -> Tensor:
        return self.network.joined(((factor.names, factor.pull(block)) for factor in self.factors), 0)


def square_sums(network: Network, factors: Iterable[Factor]) -> Float[Tensor, " d"]:
    """``sum_nk J²`` of the uncertain weights, in the order of the flat vector."""
    return network.joined((factor.names, factor.square_sum()) for factor in factors)


def jacobian_rows(network: Network, factors: Iterable[Factor]) -> Float[Tensor, "n k d"]:
    """The explicit Jacobian of a chunk in the uncertain weights, in the order of the flat vector."""
    return network.joined((factor.names, factor.rows()) for factor in factors)
