"""Functions of a batch and a column, of tensors alone, recorded and cut once for each shape of a batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data.inputs import over_tensors, tensors
from lapwing.ground.data.sources import Batch
from lapwing.ground.errors import UnsupportedError
from lapwing.ground.layout import Params
from lapwing.jacobian.model import Model
from lapwing.jacobian.network.decompositions import twice_differentiable
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.products.tracing.split import Groups, Split, TensorTuple, held_bytes, split
from lapwing.likelihoods import Likelihood

logger = logging.getLogger(__name__)

SHAPES = 8
"""Most shapes of a batch that are recorded; batches of further shapes are differentiated for every column."""


@final
@dataclass(frozen=True, eq=False)
class Arguments:
    """A batch while a function of it is being recorded, and a column.

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

    def in_order(self, values: Params) -> TensorTuple:
        """The values of the parameters, in their order."""
        return tuple(values[name] for name in self.params)


Traceable: TypeAlias = Callable[[Arguments], Groups]
"""What is recorded of a batch and a column."""


@final
@dataclass(frozen=True, eq=False)
class Prepared:
    """A function of a batch and a column whose half that does not depend on the column is done.

    Args:
        network: The network.
        split: The function, cut.
        kept: What the first half returned.
        bytes: Bytes that keeps.
    """

    network: Network
    split: Split
    kept: TensorTuple
    bytes: int

    def results(
        self, group: int, *, change: Float[Tensor, " d"] | None = None, cotangent: Tensor | None = None
    ) -> TensorTuple:
        """A group of results for a change of the uncertain weights, or of the outputs, where they depend on it."""
        parts: list[Tensor | None] = [None] * len(self.network.names)
        if change is not None:
            spread = self.network.spread(change).contiguous()
            parts = list(self.network.layout.unflatten(spread).values())
        return self.split.product(self.kept, [*parts, cotangent], group)

    def weights(
        self, group: int, *, change: Float[Tensor, " d"] | None = None, cotangent: Tensor | None = None
    ) -> Float[Tensor, " d"]:
        """A group that is a change of the parameters, as one of the uncertain weights."""
        moved = self.results(group, change=change, cotangent=cotangent)
        return self.network.chosen(torch.cat([value.reshape(-1) for value in moved]))


@final
@dataclass(frozen=True, eq=False)
class Tracer:
    """A function of a batch and a column in two halves, recorded for each shape of a batch.

    Args:
        model: The network and its likelihood.
        functions: What to record, in order of preference.
        shapes: Most shapes of a batch that are recorded.
        traces: What was recorded, by the shape; ``None`` where nothing could be.
    """

    model: Model
    functions: tuple[Traceable, ...]
    shapes: int = SHAPES
    traces: dict[Hashable, Split | None] = field(default_factory=dict, init=False, repr=False)

    def prepare(self, batch: Batch) -> Prepared | None:
        """The half that does not depend on the column; ``None`` where the function cannot be recorded."""
        network = self.model.network
        data = [value.contiguous() for value in (*tensors(batch.inputs), batch.targets)]
        fixed = [*network.params.values(), *self._others.values(), *data]
        trace = self._trace(batch, fixed)
        if trace is None:
            return None
        kept = trace.prepare(fixed)
        held = held_bytes(kept, tuple(fixed)) + sum(value.nbytes for value in data)
        return Prepared(network, trace, kept, held)

    @property
    def _others(self) -> Params:
        """Tensors of the network that are not uncertain."""
        return {**self.model.network.fixed, **self.model.network.buffers}

    def _trace(self, batch: Batch, fixed: list[Tensor]) -> Split | None:
        """What was recorded for the shape of the batch, or is now."""
        shape = shape_of(batch)
        if shape in self.traces:
            return self.traces[shape]
        if len(self.traces) == self.shapes:
            logger.info("%d shapes of a batch recorded: further ones go the plain way", self.shapes)
        trace = self._record(batch, fixed) if len(self.traces) < self.shapes else None
        self.traces[shape] = trace
        return trace

    def _record(self, batch: Batch, fixed: list[Tensor]) -> Split | None:
        network = self.model.network
        change = [torch.zeros_like(value) for value in network.params.values()]
        cotangent = network.like.new_zeros(len(batch), *self.model.event)
        reasons: list[str] = []
        for function in self.functions:
            try:
                return split(self._of_tensors(function, batch), fixed, [*change, cotangent])
            except UnsupportedError as reason:
                reasons.append(reason.got)
        distinct = "; ".join(dict.fromkeys(reasons))
        logger.info("cannot record the product (%s): differentiating for every column", distinct)
        return None

    def _of_tensors(self, function: Traceable, batch: Batch) -> Callable[..., Groups]:
        """The function of tensors alone: parameters, other tensors of the network, data, column."""
        network = self.model.network
        likelihood = self.model.likelihood
        names_of_others = tuple(self._others)

        def of_tensors(*values: Tensor) -> Groups:
            rest = iter(values)
            params = {name: next(rest) for name in network.names}
            others = {name: next(rest) for name in names_of_others}
            inputs = over_tensors(lambda value: next(rest) if isinstance(value, Tensor) else value, batch.inputs)
            targets = next(rest)
            change = {name: next(rest) for name in network.names}
            cotangent = next(rest)

            def outputs(at: Params) -> Tensor:
                return likelihood.canonical(network(inputs, {**others, **at}))

            with twice_differentiable():
                return function(Arguments(likelihood, outputs, targets, params, change, cotangent))

        return of_tensors


def shape_of(batch: Batch) -> Hashable:
    """What recorded halves depend on: shapes and dtypes of the tensors, and all other inputs."""
    described: list[Any] = []

    def describe(value: Any) -> Any:
        if isinstance(value, Tensor):
            described.append((tuple(value.shape), value.dtype, value.device))
        else:
            described.append(repr(value))
        return value

    keys = tuple(batch.inputs) if isinstance(batch.inputs, Mapping) else ()
    over_tensors(describe, batch.inputs)
    describe(batch.targets)
    return (keys, *described)
