"""Two forms of the linearised network: layer by layer, and by plain automatic differentiation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.sums import raw
from lapwing.ground.data import Batch
from lapwing.jacobian.layers.layerwise import Layerwise
from lapwing.jacobian.model import Model
from lapwing.jacobian.products.columnwise import Columnwise
from lapwing.jacobian.products.products import Executor
from lapwing.likelihoods.cotangents import COLUMNS, by_position
from lapwing.linear.model import Chunk


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
        f = self.model.likelihood.canonical(forward.outputs)
        y = self.model.likelihood.canonical_targets(f, batch.targets)
        seen = self.model.likelihood.basis(f)
        columns = seen.mT.view(seen.shape[1], *(1,) * (f.ndim - 1), f.shape[-1]).expand(-1, *f.shape)
        blocks = list(by_position(columns, f.ndim - 2))
        rows = [Layerwise.of(forward, raw(self.model.likelihood, cotangents)) for cotangents in blocks]
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
