"""The Jacobian of one batch, by explicit rows or column by column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data.inputs import Inputs, chunks, count
from lapwing.jacobian.limits import Limits
from lapwing.jacobian.model import Model
from lapwing.jacobian.products.autodiff_jacobian import Columnwise
from lapwing.jacobian.products.explicit_jacobian import explicit_chunk
from lapwing.likelihoods.base import COLUMNS
from lapwing.linear.model import Chunk


@final
class BatchJacobian:
    """The Jacobian of one batch: explicit rows where there are as many columns and they fit, else column by column.

    Args:
        model: The network and its likelihood.
        inputs: The n examples of the batch.
        budget: Bytes for explicit rows.
        keep: Whether rows, once made, are kept for further products.
    """

    def __init__(self, model: Model, inputs: Inputs, budget: int = Limits.training, *, keep: bool = False) -> None:
        self.model = model
        self.inputs = inputs
        self.budget = budget
        self.keep = keep
        self.kept: list[Chunk] | None = None
        """The explicit rows, some examples at a time, once they were made to be kept."""

    def push(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "k n *event c"]:
        """``J V``: a change of the outputs for each change of the weights."""
        if not self.by_rows(block.shape[1]):
            return self._columnwise.push(block)
        return torch.cat([rows.push(block) for rows in self.rows()], dim=1)

    def pull(self, block: Float[Tensor, "k n *event c"]) -> Float[Tensor, "d k"]:
        """``Jᵀ U``: a change of the weights for each change of the outputs."""
        if not self.by_rows(len(block)):
            return self._columnwise.pull(block)
        total = block.new_zeros(self.model.network.size, len(block))
        start = 0
        for rows in self.rows():
            total += rows.pull(block[:, start : start + rows.examples])
            start += rows.examples
        return total

    def by_rows(self, columns: int) -> bool:
        """Whether explicit rows are there, or pay for so many columns and fit."""
        if self.kept is not None:
            return True
        bytes_of_one = self.model.width * self.model.network.size * self.model.network.like.element_size()
        return columns >= self.model.width and bytes_of_one <= self.budget

    def rows(self) -> Iterable[Chunk]:
        """The explicit rows of some examples at a time."""
        if not self.keep:
            return self._made()
        if self.kept is None:
            self.kept = list(self._made())
        return self.kept

    def _made(self) -> Iterator[Chunk]:
        size = self.model.chunk(self.model.width, self.model.network.layout.size, budget=self.budget)
        for _, part in chunks(self.inputs, size):
            yield explicit_chunk(self.model, part)[0]

    @cached_property
    def _columnwise(self) -> Columnwise:
        """As many columns at once as fit the budget with all examples."""
        each = self.model.survey.bytes(1, self.model.network.like.element_size()) * count(self.inputs)
        return Columnwise(self.model, self.inputs, max(1, min(COLUMNS, self.budget // each)))
