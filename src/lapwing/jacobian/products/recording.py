"""Functions of a batch and a column, of tensors alone, recorded and cut once for each shape of a batch.

The linearised network is one: what it keeps of a batch serves columns pushed forward and columns pulled back.
"""

from __future__ import annotations

import abc
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, TypeVar, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import jvp, vjp

from lapwing.ground.data import Batch, over_tensors, tensors
from lapwing.ground.errors import UnsupportedError
from lapwing.ground.types import Params
from lapwing.jacobian.model import Model
from lapwing.jacobian.network.spelled import twice_differentiable
from lapwing.jacobian.products.products import Executor, Sized
from lapwing.jacobian.products.split import Split, Tensors, held_bytes, split
from lapwing.likelihoods import Likelihood
from lapwing.linear.model import Chunk

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
        full = self.model.network.spread(column)
        return list(self.model.network.layout.unflatten(full.contiguous()).values())

    def _gathered(self, moved: Sequence[Tensor]) -> Float[Tensor, " d"]:
        """A change of the parameters as one of the uncertain weights."""
        return self.model.network.chosen(torch.cat([value.reshape(-1) for value in moved]))

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


def forward(traced: Traced, *column: Tensor) -> Tensors:
    """``f``, ``J v`` pushed beside the forward pass, and ``Jᵀ u``."""
    change = dict(zip(traced.params, column, strict=False))
    f, pull = vjp(traced.outputs, traced.params)[:2]
    moved = jvp(traced.outputs, (traced.params,), (change,))[1]
    return (f, moved, *traced.in_order(pull(column[-1])[0]))


def adjoint(traced: Traced, *column: Tensor) -> Tensors:
    """The same, J as the adjoint of ``u -> Jᵀ u``: for what has no forward mode, or a wrong one."""
    change = dict(zip(traced.params, column, strict=False))
    f, pull = vjp(traced.outputs, traced.params)[:2]
    push = vjp(lambda u: pull(u)[0], torch.zeros_like(f))[1]
    return (f, push(change)[0], *traced.in_order(pull(column[-1])[0]))


@final
@dataclass(frozen=True, eq=False)
class Recorded(Recording[Chunk]):
    """``f``, ``J v`` and ``Jᵀ u`` of a chunk, v and u being the column: either is computed without the other."""

    @property
    def recipes(self) -> tuple[Callable[..., Tensors], ...]:
        """Forward mode where it is right, else adjoints."""
        return (adjoint,) if self.model.network.padded else (forward, adjoint)

    @cached_property
    def _event(self) -> torch.Size:
        """Shape of the canonical outputs of one example."""
        return self.model.likelihood.canonical(torch.empty(1, *self.model.survey.output, device="meta")).shape[1:]

    def _column(self, batch: Batch) -> list[Tensor]:
        return [*self._change, self.model.network.like.new_zeros(len(batch), *self._event)]

    def _unrecorded(self, batch: Batch) -> Chunk:
        """A plain chunk; kept, for what it takes, where others are that were recorded: else none would be."""
        chunk = self.plain.prepare(batch)
        if not any(self.traces.values()):
            return chunk
        return replace(chunk, bytes=self.model.survey.bytes(1, self.model.network.like.element_size()) * len(batch))

    def _ready(self, batch: Batch, halves: Split, kept: Tensors, size: int) -> Chunk:
        names, no_change = self.model.network.names, [None] * len(self.model.network.names)
        forth, back = halves.only(1, 2), halves.only(2, 2 + len(names))
        (f,) = halves.only(0, 1).product(kept, [*no_change, None])
        y = self.model.likelihood.canonical_targets(f, batch.targets)

        def push(block: Float[Tensor, "d k"]) -> Float[Tensor, "k n *event c"]:
            return torch.cat([torch.stack(forth.product(kept, [*self._spread(v), None])) for v in block.unbind(1)])

        def pull(block: Float[Tensor, "k n *event c"]) -> Float[Tensor, "d k"]:
            pulled = [back.product(kept, [*no_change, u.contiguous()]) for u in block]
            return torch.stack([self._gathered(moved) for moved in pulled], dim=1)

        return Chunk(batch.inputs, f, y, push, pull, 1, size)
