"""What is passed together: a trained network, its layers, its likelihood, the data; and its forward pass, pulled back.

One backward pass a cotangent gives the factors of every layer; J is never built.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias, cast, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data.inputs import Inputs, count, ordinary
from lapwing.ground.data.sources import Data
from lapwing.ground.device import default_device_aside
from lapwing.ground.errors import UnsupportedError
from lapwing.ground.layout import Params
from lapwing.ground.progress import track
from lapwing.jacobian.layers.capture import (
    NORMS,
    Call,
    Layer,
    Survey,
    affine_sum,
    by_example,
    captured,
    examples_first,
    leaves,
)
from lapwing.jacobian.layers.factors import Factor, Outer, Rows, patches
from lapwing.jacobian.layers.lookup import Lookup
from lapwing.jacobian.layers.loose import loose_rows
from lapwing.jacobian.network.network import Network
from lapwing.likelihoods import Likelihood

Room: TypeAlias = dict[int, Tensor]
"""Where the gradients of each use of a layer are written, in place of those of an earlier chunk."""

BUDGET = 2**27
"""Bytes the layer factors of one chunk of training data may take (128 MiB)."""

MANY = 256
"""Outputs beyond which their covariance is made only when it is asked for: at each position it takes their square."""


@final
@dataclass(frozen=True, eq=False)
class Model:
    """A trained network under its likelihood, with the data it was trained on.

    Args:
        network: The network.
        survey: What is known of its layers.
        likelihood: p(y | f); says where the outputs' axes are.
        source: The data; ``None`` where there are none, as for a posterior loaded from a file.
    """

    network: Network
    survey: Survey
    likelihood: Likelihood
    source: Data | None = None

    @property
    def data(self) -> Data:
        """The data.

        Raises:
            UnsupportedError: If there are none.
        """
        if self.source is None:
            raise UnsupportedError(
                "a posterior that has its training data",
                "one from a file, which holds none",
                "load(path, model, data) with the training data",
            )
        return self.source

    @property
    def width(self) -> int:
        """Outputs of one example, over all positions of an event."""
        return self.survey.output.numel()

    @property
    def many(self) -> bool:
        """Whether one layer makes the outputs, and makes more than ``MANY``."""
        return self.survey.head and self.event[-1] > MANY

    @property
    def event(self) -> torch.Size:
        """Shape of the canonical outputs of one example."""
        return self.likelihood.canonical(torch.empty(1, *self.survey.output, device="meta")).shape[1:]

    def chunk(self, cotangents: int, budget: int, extra: int = 0, roots: int = 0) -> int:
        """Examples whose factors fit the byte budget; see ``Survey.bytes``."""
        return self.survey.chunk(cotangents, self.network.like.itemsize, budget, extra, roots)

    def outputs(self, inputs: Inputs) -> Float[Tensor, "n *event c"]:
        """Canonical outputs of some examples, without a graph."""
        with torch.no_grad():
            return self.likelihood.canonical(self.network(inputs))

    def forward(self, inputs: Inputs) -> Pass:
        """The forward pass of a chunk of examples, ready to be pulled back."""
        return Pass(self.network, self.survey, inputs, self.likelihood)


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
    def watched(self) -> tuple[Tensor, list[Call]]:
        """What the network returned, with its graph, and the uses of uncertain layers, in order."""
        return captured(self.network, self.inputs, self._leaves)

    def knowing(self, survey: Survey, likelihood: Likelihood | None = None) -> Pass:
        """The same pass of a network of which more is known; nothing is computed again."""
        changed = replace(self, survey=survey, likelihood=likelihood)
        vars(changed).update(_leaves=self._leaves, watched=self.watched)
        return changed

    @property
    def outputs(self) -> Tensor:
        """Canonical outputs, ``[n, *event, c]``."""
        outputs = self.watched[0].detach()
        return outputs if self.likelihood is None else self.likelihood.canonical(outputs)

    @cached_property
    def head(self) -> Outer:
        """The layer that makes the outputs, by its inputs alone: ``J = I ⊗ aᵀ`` at each position. Its g is not one."""
        (layer,), (outputs, calls) = self.survey.layers, self.watched
        (call,) = [call for call in calls if layer.owns(call)]
        nothing = outputs.new_zeros(()).expand(call.shape[0], 1, *call.shape[1:])
        return cast(Outer, self._factor(layer, [call], [nothing]))

    def factors(self, cotangents: Float[Tensor, "k n ..."], room: Room | None = None) -> Iterator[Factor]:
        """The factors of every uncertain parameter, layer by layer.

        Args:
            cotangents: Directions to pull back, each of the shape of the canonical outputs.
            room: Of earlier factors that are not needed any more: memory that went back to the system costs as much to
                get again as to fill.

        Yields:
            One factor a layer, then one for each parameter without layer factors.

        Raises:
            UnsupportedError: If a layer has no part in the outputs of this chunk.

        Cost:
            k backward passes through the activations.
        """
        yield from self.layer_factors(cotangents, room)
        survey = self.survey
        if survey.loose:
            returned = self._cotangents_returned(cotangents)
            for name, rows in loose_rows(self.network, survey.loose, self.inputs, returned, survey.way).items():
                yield Rows(name, None, rows)

    def layer_factors(self, cotangents: Float[Tensor, "k n ..."], room: Room | None = None) -> Iterator[Factor]:
        """The factors of the layers alone; without room, what one is made from is not held until the next."""
        outputs, calls = self.watched
        uses = [(layer, call) for layer in self.survey.layers for call in calls if layer.owns(call)]
        held: list[Tensor] = []
        pulled_back = self._cotangents_returned(cotangents) if uses else cotangents[:0]
        for k, cotangent in enumerate(track(pulled_back, "backward passes", unit="outputs")):
            edges = [call.edge for _, call in uses]
            pulled = torch.autograd.grad(along(outputs, cotangent), edges, retain_graph=True, allow_unused=True)
            for i, ((layer, call), g) in enumerate(zip(uses, pulled, strict=True)):
                part = self._kept(layer, call, outputs.new_zeros(call.shape) if g is None else g)
                if len(cotangents) == 1:
                    held.append(part.unsqueeze(1))
                    continue
                if k == 0:
                    shape = (part.shape[0], len(cotangents), *part.shape[1:])
                    empty = part.new_empty(0)
                    held.append((empty if room is None else room.setdefault(i, empty)).resize_(shape))
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
        target = along(self.watched[0], self._cotangents_returned(cotangent[None])[0])
        grads = torch.autograd.grad(target, values, retain_graph=True, allow_unused=True, materialize_grads=True)
        return self.network.joined(((name,), grad.flatten()) for name, grad in zip(self._leaves, grads, strict=True))

    def _cotangents_returned(self, cotangents: Tensor) -> Tensor:
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


def at_positions(uses: list[Tensor], axis: int) -> Tensor:
    """What several uses of one weight have, as if they were positions of one use; that of one use itself."""
    return uses[0] if len(uses) == 1 else torch.cat(uses, axis)


@contextmanager
def undisturbed() -> Generator[None]:
    """Neither inference mode, in which nothing is differentiated, nor autocast, which rounds, nor a default device.

    Also a decorator. The user's network and loader have the default device of the user.

    Example:
        >>> with torch.inference_mode(), torch.autocast("cpu"), undisturbed():
        ...     torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
        (False, False)
    """
    with (
        torch.inference_mode(False),
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
        default_device_aside(),
    ):
        yield
