"""Products with the Jacobian of a data set: J @ V and Jᵀ @ U on blocks of columns, batch by batch.

Two executors, chosen by a stated rule. *Columns* pushes each column through the network beside its forward pass, or
pulls it back: about two forward passes a column. *Rows* makes the Jacobian of a few examples, layer by layer: c
backward passes whatever the columns, and then one matrix product a layer (see ``parts``). Rows is chosen where there
are at least as many columns as outputs and the rows of an example fit the byte budget, and where they are at hand from
an earlier product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.sums import BUDGET, raw
from lapwing.ground.data import chunks, count, tensors
from lapwing.ground.types import Inputs
from lapwing.jacobian.layers.layerwise import Layerwise
from lapwing.jacobian.model import Model
from lapwing.jacobian.products.columnwise import Columnwise
from lapwing.jacobian.products.costs import Work
from lapwing.jacobian.products.products import MEMORY
from lapwing.likelihoods.cotangents import COLUMNS, identity_cotangents
from lapwing.linalg import Operator


@final
@dataclass(frozen=True, eq=False)
class BatchJacobian:
    """The Jacobian of one batch.

    Args:
        model: The network and its likelihood.
        inputs: The n examples of the batch.
        budget: Bytes for explicit rows.
        keep: Whether rows, once made, are kept for further products; else what one column needs of a forward pass is.
    """

    model: Model
    inputs: Inputs
    budget: int = BUDGET
    keep: bool = False
    _held: list[Layerwise] = field(default_factory=list, init=False, repr=False)

    def push(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "m k"]:
        """``J V``: a change of the outputs for each change of the weights."""
        if not self._by_rows(block.shape[1]):
            return self._columns.push(block)
        return torch.cat([rows.push(block).flatten(0, 1) for rows in self._rows()])

    def pull(self, block: Float[Tensor, "m k"]) -> Float[Tensor, "d k"]:
        """``Jᵀ U``: a change of the weights for each change of the outputs."""
        if not self._by_rows(block.shape[1]):
            return self._columns.pull(block)
        start, outputs = 0, self.model.width
        total = block.new_zeros(self.model.network.size, block.shape[1])
        for rows in self._rows():
            end = start + rows.examples * outputs
            total += rows.pull(block[start:end].unflatten(0, (rows.examples, outputs)))
            start = end
        return total

    @property
    def _columns(self) -> Columnwise:
        return self._columnwise() if self.keep else self._one_pass

    @cached_property
    def _one_pass(self) -> Columnwise:
        return self._columnwise()

    def _columnwise(self) -> Columnwise:
        """As many columns at once as fit the budget with all examples."""
        each = self.model.survey.bytes(1, self.model.network.like.element_size()) * count(self.inputs)
        return Columnwise(self.model, self.inputs, max(1, min(COLUMNS, self.budget // each)))

    def _by_rows(self, columns: int) -> bool:
        outputs = self.model.width
        bytes_of_one = outputs * self.model.network.size * self.model.network.like.element_size()
        return bool(self._held) or (columns >= outputs and bytes_of_one <= self.budget)

    def _rows(self) -> Iterator[Layerwise]:
        if self._held:
            yield from self._held
            return
        outputs = self.model.width
        size = self.model.chunk(outputs, self.budget, self.model.network.layout.size)
        made: list[Layerwise] = []
        for _, part in chunks(self.inputs, min(size, count(self.inputs))):
            forward = self.model.forward(part)
            directions = torch.cat(list(identity_cotangents(self.model.likelihood.canonical(forward.outputs))))
            rows = Layerwise.of(forward, raw(self.model.likelihood, directions))
            if self.keep:
                made.append(rows)
            yield rows
        self._held[:] = made  # another thread may have made them too


@final
@dataclass(frozen=True, eq=False)
class Jacobian(Operator):
    """The Jacobian of all outputs of a data set in the uncertain weights, ``[m, d]``, touched through products alone.

    Rows are ordered by example, event position, output. Batches are the outer loop and columns the inner one.

    Args:
        model: The network, its likelihood, and the data; these are read once a product, or once in all where everything
            is kept.
        budget: Bytes for the explicit rows of a chunk.
        memory: Bytes for what is kept between products: rows, if those of all the data fit.

    Cost:
        A product with k columns: about two forward passes a column, or c backward passes where k is at least c; the
        matrix products alone where rows are kept.
    """

    model: Model
    budget: int = BUDGET
    memory: int = MEMORY

    @property
    def shape(self) -> tuple[int, int]:
        """All outputs m, and the uncertain weights d."""
        return (self.model.data.examples * self.model.width, self.model.network.size)

    @property
    def T(self) -> Adjoint:
        """``Jᵀ``."""
        return Adjoint(self)

    @property
    def _like(self) -> Tensor:
        return self.model.network.like

    def batches(self) -> Iterator[BatchJacobian]:
        """The Jacobian of each batch in turn."""
        if self._kept is not None:
            yield from self._kept
            return
        for batch in self.model.data:
            yield self._part(batch.inputs)

    def _part(self, inputs: Inputs, *, keep: bool = False) -> BatchJacobian:
        return BatchJacobian(self.model, inputs, self.budget, keep)

    @cached_property
    def _kept(self) -> tuple[BatchJacobian, ...] | None:
        """All batches, ready to keep their rows; ``None`` if those do not fit."""
        outputs = self.model.width
        work = Work.of(self.model, self.model.data.first(), outputs)
        room = self.memory - work.kept[0] * self.model.network.like.element_size() * self.model.data.examples
        found: list[BatchJacobian] = []
        for batch in self.model.data if room >= 0 else ():
            room -= sum(value.numel() * value.element_size() for value in tensors(batch.inputs))
            if room < 0:
                return None
            found.append(self._part(batch.inputs, keep=True))
        return tuple(found) if room >= 0 else None

    def _matmat(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "m k"]:
        return torch.cat([part.push(block) for part in self.batches()])


@final
@dataclass(frozen=True, eq=False)
class Adjoint(Operator):
    """The adjoint of a ``Jacobian``."""

    jacobian: Jacobian

    @property
    def shape(self) -> tuple[int, int]:
        """The uncertain weights d, and all outputs m."""
        return (self.jacobian.shape[1], self.jacobian.shape[0])

    @property
    def T(self) -> Jacobian:
        """``J``."""
        return self.jacobian

    @property
    def _like(self) -> Tensor:
        return self.jacobian.model.network.like

    def _matmat(self, block: Float[Tensor, "m k"]) -> Float[Tensor, "d k"]:
        total, start = block.new_zeros(self.shape[0], block.shape[1]), 0
        outputs = self.jacobian.model.width
        for part in self.jacobian.batches():
            rows = count(part.inputs) * outputs
            total += part.pull(block[start : start + rows])
            start += rows
        return total
