"""Functions of a batch and a column, of tensors alone, recorded and cut once for each shape of a batch."""

from __future__ import annotations

import abc
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data import Batch, over_tensors, tensors
from lapwing.ground.errors import UnsupportedError
from lapwing.ground.types import Params
from lapwing.jacobian.layers.layerwise import spread
from lapwing.jacobian.model import Model
from lapwing.jacobian.network.network import twice_differentiable
from lapwing.jacobian.products.products import Executor, Sized
from lapwing.jacobian.products.split import Split, held_bytes, split
from lapwing.likelihoods import Likelihood

logger = logging.getLogger(__name__)

SHAPES = 8
"""Most shapes of a batch that are recorded; batches of further shapes go the plain way."""

Outputs = Callable[[Params], Tensor]
"""Canonical outputs of a batch, given the parameters."""

C = TypeVar("C", bound=Sized)


@final
@dataclass(frozen=True, eq=False)
class Traced:
    """A batch while it is being recorded.

    Args:
        likelihood: The likelihood.
        outputs: Canonical outputs, given the parameters.
        targets: Targets.
        params: The parameters.
    """

    likelihood: Likelihood
    outputs: Outputs
    targets: Tensor
    params: Params

    def in_order(self, values: Params) -> tuple[Tensor, ...]:
        """The values of the parameters, in their order."""
        return tuple(values[name] for name in self.params)


@dataclass(frozen=True, eq=False)
class Recording(Executor[C], Generic[C]):
    """A function of a batch and a column in two halves, recorded for each shape of a batch.

    Args:
        model: The network and its likelihood.
        examples: Examples to a chunk, at most.
        plain: What to do where nothing can be recorded.
    """

    model: Model
    examples: int
    plain: Executor[C]
    form = "split"
    traces: dict[Hashable, Split | None] = field(default_factory=dict, init=False, repr=False)

    def size(self, examples: int) -> int:
        """As many as fit the working memory."""
        return min(examples, self.examples)

    def prepare(self, batch: Batch) -> C:
        """The half that does not depend on the columns."""
        fixed = self._fixed(batch)
        halves = self._halves(batch, fixed)
        if halves is None:
            return self._unrecorded(batch)
        self.model.network.check_unchanged(values=False)
        kept = halves.prepare(fixed)
        data = sum(value.numel() * value.element_size() for value in self._data(batch))
        return self._ready(batch, halves, kept, held_bytes(kept, tuple(fixed)) + data)

    @property
    @abc.abstractmethod
    def recipes(self) -> tuple[Callable[..., tuple[Tensor, ...]], ...]:
        """What to record of a ``Traced`` batch and the tensors of a column, in order of preference."""

    @abc.abstractmethod
    def _column(self, batch: Batch) -> list[Tensor]:
        """Tensors shaped as those of a column."""

    @abc.abstractmethod
    def _ready(self, batch: Batch, halves: Split, kept: tuple[Tensor, ...], size: int) -> C:
        """The chunk, its first half done."""

    def _unrecorded(self, batch: Batch) -> C:
        """The chunk of a batch that was not recorded."""
        return self.plain.prepare(batch)

    @property
    def _change(self) -> list[Tensor]:
        """A change of the parameters."""
        return [torch.zeros_like(value) for value in self.model.network.params.values()]

    @property
    def _others(self) -> Params:
        return {**self.model.network.fixed, **self.model.network.buffers}

    def _fixed(self, batch: Batch) -> list[Tensor]:
        """All tensors that stay from column to column."""
        return [*self.model.network.params.values(), *self._others.values(), *self._data(batch)]

    def _data(self, batch: Batch) -> list[Tensor]:
        return [value.contiguous() for value in (*tensors(batch.inputs), batch.targets)]

    def _spread(self, column: Float[Tensor, " d"]) -> list[Tensor]:
        """A change of the uncertain weights as one of the parameters."""
        full = spread(self.model.network, column.unsqueeze(1)).squeeze(1)
        return list(self.model.network.layout.unflatten(full.contiguous()).values())

    def _gathered(self, moved: Sequence[Tensor]) -> Float[Tensor, " d"]:
        """A change of the parameters as one of the uncertain weights."""
        flat, index = torch.cat([value.reshape(-1) for value in moved]), self.model.network.index
        return flat if index is None else flat[index]

    def _halves(self, batch: Batch, fixed: list[Tensor]) -> Split | None:
        key = shape_of(batch)
        if key not in self.traces:
            if len(self.traces) == SHAPES:
                logger.info("%d shapes of a batch recorded: further ones go the plain way", SHAPES)
            self.traces[key] = self._record(batch, fixed) if len(self.traces) < SHAPES else None
        return self.traces[key]

    def _record(self, batch: Batch, fixed: list[Tensor]) -> Split | None:
        column = self._column(batch)
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

    def _function(self, recipe: Callable[..., tuple[Tensor, ...]], batch: Batch) -> Callable[..., tuple[Tensor, ...]]:
        """The recipe as a function of tensors alone: parameters, other tensors of the network, data, column."""
        names, others = self.model.network.names, tuple(self._others)

        def function(*values: Tensor) -> tuple[Tensor, ...]:
            rest = iter(values)
            params = {name: next(rest) for name in names}
            known = {name: next(rest) for name in others}
            inputs = over_tensors(lambda value: next(rest) if isinstance(value, Tensor) else value, batch.inputs)
            targets = next(rest)
            outputs = lambda at: self.model.likelihood.canonical(self.model.network(inputs, {**known, **at}))  # noqa: E731
            with twice_differentiable():
                return recipe(Traced(self.model.likelihood, outputs, targets, params), *rest)

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
