"""The Jacobian of a batch, layer by layer or by plain automatic differentiation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data import Batch, chunks, count
from lapwing.ground.types import Inputs
from lapwing.jacobian.layers.factors import Factor
from lapwing.jacobian.model import BUDGET, Model, Pass
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.products.products import Executor
from lapwing.jacobian.products.reverse import Columnwise
from lapwing.likelihoods.base import COLUMNS, by_position, identity_cotangents
from lapwing.linear.model import Chunk


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
            directions = torch.cat(list(identity_cotangents(forward.outputs)))
            rows = Layerwise.of(forward, directions)
            if self.keep:
                made.append(rows)
            yield rows
        self._held[:] = made  # another thread may have made them too


@final
@dataclass(frozen=True, eq=False)
class Layered(Executor[Chunk]):
    """The rows ``R = Eᵀ J`` of a chunk of examples held layer by layer; E has all changes that the likelihood sees.

    Args:
        model: The network and its likelihood.
        examples: Examples to a chunk, at most.
    """

    model: Model
    examples: int
    form = "layers"

    def size(self, examples: int) -> int:
        """As many as fit the working memory."""
        return min(examples, self.examples)

    def prepare(self, batch: Batch) -> Chunk:
        """The rows: a forward pass, and a backward pass for each column of E."""
        self.model.network.check_unchanged(values=False)
        forward = self.model.forward(batch.inputs)
        f = forward.outputs
        y = self.model.likelihood.canonical_targets(f, batch.targets)
        seen = self.model.likelihood.basis(f)
        columns = seen.mT.view(seen.shape[1], *(1,) * (f.ndim - 1), f.shape[-1]).expand(-1, *f.shape)
        blocks = list(by_position(columns, f.ndim - 2))
        rows = [Layerwise.of(forward, cotangents) for cotangents in blocks]
        widths = [len(cotangents) for cotangents in blocks]

        def push(block: Float[Tensor, "d k"]) -> Float[Tensor, "k n *event c"]:
            moved = torch.cat([part.push(block) for part in rows], dim=1).movedim(-1, 0)
            return moved.reshape(-1, *f.shape[:-1], seen.shape[1]) @ seen.mT

        def pull(block: Float[Tensor, "k n *event c"]) -> Float[Tensor, "d k"]:
            split = (block @ seen).flatten(2).movedim(0, -1).split(widths, dim=1)
            pieces = [part.pull(piece) for part, piece in zip(rows, split, strict=True)]
            return sum(pieces[1:], start=pieces[0])

        return Chunk(batch.inputs, f, y, push, pull, COLUMNS, sum(part.bytes for part in rows))


@final
@dataclass(frozen=True, eq=False)
class Differentiated(Executor[Chunk]):
    """Each column pushed through the network again, and pulled back through it.

    Args:
        model: The network and its likelihood.
        room: Examples times columns that there is memory for; a chunk has no more examples, which take one column.
    """

    model: Model
    room: int
    form = "plain"

    def size(self, examples: int) -> int:
        """As many as there is room for with one column."""
        return min(examples, self.room)

    def prepare(self, batch: Batch) -> Chunk:
        """A forward pass; nothing else can be prepared."""
        width = max(1, min(COLUMNS, self.room // len(batch)))
        part = Columnwise(self.model, batch.inputs, width)
        f = part.outputs
        y = self.model.likelihood.canonical_targets(f, batch.targets)

        def push(block: Float[Tensor, "d k"]) -> Float[Tensor, "k n *event c"]:
            return part.push(block).mT.reshape(-1, *f.shape)

        def pull(block: Float[Tensor, "k n *event c"]) -> Float[Tensor, "d k"]:
            return part.pull(block.flatten(1).mT)

        return Chunk(batch.inputs, f, y, push, pull, width, None)
