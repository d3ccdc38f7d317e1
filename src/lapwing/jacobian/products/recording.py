"""Functions of a batch and a column, of tensors alone, recorded and cut once for each shape of a batch.

The linearised network is one: what it keeps of a batch serves columns pushed forward and columns pulled back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import jvp, vjp

from lapwing.ground.data import Batch, over_tensors, tensors
from lapwing.ground.errors import UnsupportedError
from lapwing.ground.tree import Params
from lapwing.jacobian.model import Model
from lapwing.jacobian.network.decompositions import twice_differentiable
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.products.split import Split, Tensors, held_bytes, split
from lapwing.likelihoods import Likelihood
from lapwing.linear.model import Chunk

logger = logging.getLogger(__name__)


SHAPES = 8
"""Most shapes of a batch that are recorded; batches of further shapes go the plain way."""


@final
@dataclass(frozen=True, eq=False)
class Traced:
    """A batch while it is being recorded, and a column.

    Args:
        likelihood: The likelihood.
        outputs: Canonical outputs of the batch, given the parameters.
        targets: Targets.
        params: The parameters.
        change: A change of the parameters.
        cotangent: A change of the canonical outputs.
    """

    likelihood: Likelihood
    outputs: Callable[[Params], Tensor]
    targets: Tensor
    params: Params
    change: Params
    cotangent: Tensor

    def in_order(self, values: Params) -> Tensors:
        """The values of the parameters, in their order."""
        return tuple(values[name] for name in self.params)


Recipe: TypeAlias = Callable[[Traced], Tensors]
"""What is recorded of a batch and a column."""


@final
@dataclass(frozen=True, eq=False)
class Halves:
    """A function of a batch and a column whose half that does not depend on the column is done.

    Args:
        network: The network.
        split: The function, cut.
        kept: What the first half returned.
        bytes: Bytes that keeps.
    """

    network: Network
    split: Split
    kept: Tensors
    bytes: int

    def results(self, start: int, stop: int, change: Tensor | None, cotangent: Tensor | None) -> Tensors:
        """Some of the results for a change of the uncertain weights and one of the outputs, where they depend on it."""
        parts: Sequence[Tensor | None] = [None] * len(self.network.names)
        if change is not None:
            parts = list(self.network.layout.unflatten(self.network.spread(change).contiguous()).values())
        return self.split.only(start, stop).product(self.kept, [*parts, cotangent])

    def weights(
        self, start: int, change: Float[Tensor, " d"] | None, cotangent: Tensor | None = None
    ) -> Float[Tensor, " d"]:
        """Results from the ``start``-th on, a change of the parameters, as one of the uncertain weights."""
        moved = self.results(start, start + len(self.network.names), change, cotangent)
        return self.network.chosen(torch.cat([value.reshape(-1) for value in moved]))


@final
@dataclass(frozen=True, eq=False)
class Recording:
    """A function of a batch and a column in two halves, recorded for each shape of a batch.

    Args:
        model: The network and its likelihood.
        recipes: What to record, in order of preference.
        traces: What was recorded; ``None`` where nothing could be.
    """

    model: Model
    recipes: tuple[Recipe, ...]
    traces: dict[Hashable, Split | None] = field(default_factory=dict, init=False, repr=False)

    def prepare(self, batch: Batch) -> Halves | None:
        """The half that does not depend on the column; ``None`` where the function cannot be recorded."""
        network, data = self.model.network, [value.contiguous() for value in (*tensors(batch.inputs), batch.targets)]
        fixed = [*network.params.values(), *self._others.values(), *data]
        key = shape_of(batch)
        if key not in self.traces:
            if len(self.traces) == SHAPES:
                logger.info("%d shapes of a batch recorded: further ones go the plain way", SHAPES)
            self.traces[key] = self._record(batch, fixed) if len(self.traces) < SHAPES else None
        halves = self.traces[key]
        if halves is None:
            return None
        kept = halves.prepare(fixed)
        return Halves(network, halves, kept, held_bytes(kept, tuple(fixed)) + sum(value.nbytes for value in data))

    @property
    def _others(self) -> Params:
        return {**self.model.network.fixed, **self.model.network.buffers}

    def _record(self, batch: Batch, fixed: list[Tensor]) -> Split | None:
        network = self.model.network
        change = [torch.zeros_like(value) for value in network.params.values()]
        column = [*change, network.like.new_zeros(len(batch), *self.model.event)]
        reasons: list[str] = []
        for recipe in self.recipes:
            try:
                return split(self._function(recipe, batch), fixed, column)
            except UnsupportedError as reason:
                reasons.append(reason.got)
        logger.info(
            "cannot record the product (%s): differentiating for every column", "; ".join(dict.fromkeys(reasons))
        )
        return None

    def _function(self, recipe: Recipe, batch: Batch) -> Callable[..., Tensors]:
        """The recipe as a function of tensors alone: parameters, other tensors of the network, data, column."""
        names, others, likelihood = self.model.network.names, tuple(self._others), self.model.likelihood

        def function(*values: Tensor) -> Tensors:
            rest = iter(values)
            params = {name: next(rest) for name in names}
            known = {name: next(rest) for name in others}
            inputs = over_tensors(lambda value: next(rest) if isinstance(value, Tensor) else value, batch.inputs)
            outputs = lambda at: likelihood.canonical(self.model.network(inputs, {**known, **at}))  # noqa: E731
            targets, change = next(rest), {name: next(rest) for name in names}
            with twice_differentiable():
                return recipe(Traced(likelihood, outputs, targets, params, change, next(rest)))

        return function


def shape_of(batch: Batch) -> Hashable:
    """What recorded halves depend on: shapes and dtypes of the tensors, and all other inputs."""
    described: list[Any] = []

    def describe(value: Any) -> Any:
        tensor = isinstance(value, Tensor)
        described.append((tuple(value.shape), value.dtype, value.device) if tensor else repr(value))
        return value

    keys = tuple(batch.inputs) if isinstance(batch.inputs, Mapping) else ()
    over_tensors(describe, batch.inputs)
    describe(batch.targets)
    return (keys, *described)


def forward(traced: Traced) -> Tensors:
    """``f``, ``J v`` pushed beside the forward pass, and ``Jᵀ u``."""
    f, pull = vjp(traced.outputs, traced.params)[:2]
    moved = jvp(traced.outputs, (traced.params,), (traced.change,))[1]
    return (f, moved, *traced.in_order(pull(traced.cotangent)[0]))


def adjoint(traced: Traced) -> Tensors:
    """The same, J as the adjoint of ``u -> Jᵀ u``: for what has no forward mode, or a wrong one."""
    f, pull = vjp(traced.outputs, traced.params)[:2]
    push = vjp(lambda u: pull(u)[0], torch.zeros_like(f))[1]
    return (f, push(traced.change)[0], *traced.in_order(pull(traced.cotangent)[0]))


def linearised(network: Network) -> tuple[Recipe, ...]:
    """``f``, ``J v`` and ``Jᵀ u``, each computed without the others: forward mode where it is right, else adjoints."""
    return (adjoint,) if network.padded else (forward, adjoint)


def recorded(
    recording: Recording, plain: Callable[[Batch], tuple[Chunk, None]], batch: Batch
) -> tuple[Chunk, int | None]:
    """J of a chunk of examples by its recorded halves, and their bytes.

    Args:
        recording: Of what is ``linearised``.
        plain: What to do where nothing can be recorded; kept, for what it takes, where others are that were recorded:
            else none would be.
        batch: The examples.
    """
    model, halves = recording.model, recording.prepare(batch)
    if halves is None:
        others = any(recording.traces.values())
        return plain(batch)[0], model.survey.bytes(1, model.network.like.itemsize) * len(batch) if others else None
    (f,) = halves.results(0, 1, None, None)

    def push(block: Float[Tensor, "d k"]) -> Float[Tensor, "k n *event c"]:
        return torch.cat([torch.stack(halves.results(1, 2, column, None)) for column in block.unbind(1)])

    def pull(block: Float[Tensor, "k n *event c"]) -> Float[Tensor, "d k"]:
        return torch.stack([halves.weights(2, None, cotangent.contiguous()) for cotangent in block], dim=1)

    return Chunk(batch.inputs, f, model.likelihood.canonical_targets(f, batch.targets), push, pull, 1), halves.bytes
