"""What an embedding contributes to the Jacobian: a few rows of its table for each example."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.jacobian.layers.factors import Factor


@final
@dataclass(frozen=True, eq=False)
class Lookup(Factor):
    """An embedding: the gradient of row v is the sum of ``g_t`` over the positions that looked v up.

    Args:
        g: Gradients at the embedding's output, ``[n, k, t, e]``.
        shape: Rows and width of the table, ``(v, e)``.
        index: The row each position looked up.
        padding: Row that has no gradient.
    """

    shape: tuple[int, int]
    index: Int[Tensor, "n t"]
    padding: int | None = None

    def for_products(self) -> Lookup:
        """The gradients laid out use by use."""
        return replace(self, g=self.g.transpose(1, 2).contiguous().transpose(1, 2))

    @cached_property
    def uses(self) -> tuple[Int[Tensor, " m"], Int[Tensor, " m"], Float[Tensor, "m k e"]]:
        """Example, row and gradients of each position that looked up a row with a gradient."""
        n, t = self.index.shape
        example = torch.arange(n, device=self.index.device).repeat_interleave(t)
        row, g = self.index.flatten(), self.g.transpose(1, 2).flatten(0, 1)
        if self.padding is None:
            return example, row, g
        kept = row != self.padding
        return example[kept], row[kept], g[kept]

    @cached_property
    def used(self) -> tuple[Tensor, Tensor, Tensor]:
        """Distinct (example, row) pairs: example [u], row [u], and the summed gradient of each [u, k, e]."""
        example, row, g = self.uses
        pairs, place = torch.unique(example * self.shape[0] + row, return_inverse=True)
        summed = g.new_zeros(len(pairs), *g.shape[1:]).index_add_(0, place, g)
        return pairs // self.shape[0], pairs % self.shape[0], summed

    def rows(self) -> Float[Tensor, "n k d"]:
        """The explicit Jacobian of the table: mostly zeros."""
        example, row, summed = self.used
        dense = self.g.new_zeros(self.index.shape[0], self.g.shape[1], *self.shape)
        dense[example, :, row] = summed
        return dense.flatten(2)

    def square_sum(self) -> Float[Tensor, " d"]:
        """Of the rows that were looked up."""
        _, row, summed = self.used
        return self.g.new_zeros(self.shape).index_add_(0, row, summed.square().sum(1)).flatten()

    def covariance(self, variance: Float[Tensor, " d"]) -> Float[Tensor, "n k k"]:
        """From the rows that were looked up."""
        example, row, summed = self.used
        products = (summed * variance.view(self.shape)[row].unsqueeze(1)) @ summed.mT
        k = self.g.shape[1]
        return self.g.new_zeros(self.index.shape[0], k, k).index_add_(0, example, products)

    def push(self, block: Float[Tensor, "d c"]) -> Float[Tensor, "n k c"]:
        """``J V`` from each use."""
        example, row, g = self.uses
        products = g @ block.view(*self.shape, -1)[row]
        return block.new_zeros(len(self.index), *products.shape[1:]).index_add_(0, example, products)

    def pull(self, block: Float[Tensor, "n k c"]) -> Float[Tensor, "d c"]:
        """``Jᵀ U`` from each use."""
        example, row, g = self.uses
        products = g.mT @ block[example]
        return block.new_zeros(self.shape[0], *products.shape[1:]).index_add_(0, row, products).flatten(0, 1)
