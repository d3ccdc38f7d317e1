"""What an embedding contributes to the Jacobian: a few rows of its table for each example."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from lapwing.ground.precision import DOUBLE, Precision, wide
from lapwing.jacobian.layers.base import (
    Call,
    Cost,
    Factor,
    Layer,
    LayerKind,
    at_positions,
    by_example,
    contracted,
    examples_first,
)
from lapwing.jacobian.layers.moments import ColumnMoment, Moment, Sharing
from lapwing.jacobian.layers.shifted_spectra import ShiftedSpectra
from lapwing.linalg.operators.eigenbasis import Eigenbasis


@final
class Table(NamedTuple):
    """What an embedding looks its rows up in.

    Args:
        shape: Rows and width, ``(v, e)``.
        padding: Row that has no gradient.
    """

    shape: tuple[int, int]
    padding: int | None


@final
@dataclass(frozen=True, eq=False)
class Embedding(LayerKind):
    """``torch.nn.functional.embedding``: the gradient of row v adds up ``g_t`` over the positions that looked v up.

    Args:
        g: Gradients at the embedding's output, ``[n, k, t, e]``.
        shape: Rows and width of the table, ``(v, e)``.
        index: The row each position looked up.
        padding: Row that has no gradient.
    """

    recorded = False

    shape: tuple[int, int]
    index: Int[Tensor, "n t"]
    padding: int | None = None

    @classmethod
    def input_and_options(cls, func: Callable[..., Any], given: dict[str, Any]) -> tuple[Tensor, Table]:
        """See ``LayerKind``."""
        rows, width = given["weight"].shape
        padding = given["padding_idx"]
        return given["input"].detach(), Table((rows, width), None if padding is None else padding % rows)

    @classmethod
    def of(cls, layer: Layer, calls: list[Call], grads: list[Tensor], n: int) -> Embedding:
        """See ``LayerKind``."""
        g = at_positions([by_example(part, layer.axis, n) for part in grads], 2)
        index = at_positions([examples_first(call.input, layer.axis, n, 0) for call in calls], 1)
        table = calls[0].options
        return cls(layer.weight, None, g, table.shape, index, table.padding)

    def for_products(self) -> Embedding:
        """The gradients laid out use by use."""
        return replace(self, g=self.g.transpose(1, 2).contiguous().transpose(1, 2))

    @cached_property
    def uses(self) -> tuple[Int[Tensor, " m"], Int[Tensor, " m"], Float[Tensor, "m k e"]]:
        """Example, row and gradients of each position that looked up a row with a gradient."""
        n, t = self.index.shape
        example = torch.arange(n, device=self.index.device).repeat_interleave(t)
        row = self.index.flatten()
        g = self.g.transpose(1, 2).flatten(0, 1)
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

    def cost(self, cotangents: int) -> Cost:
        """See ``Factor``."""
        uses = self.index.shape[1]
        width = self.shape[1]
        kept = uses * (cotangents * width + 4)
        return Cost(0, 0, cotangents * uses * width, kept, uses * width, 0)

    def gradient_moment(self, sharing: Sharing, precision: Precision = DOUBLE) -> Moment:
        """See ``Factor``; each position always counts by itself."""
        _, _, g = self.uses
        return ColumnMoment(precision.operand(g.flatten(0, 1)).mT[None, None])

    def input_moment(self, sharing: Sharing, precision: Precision = DOUBLE) -> Moment:
        """See ``Factor``; one-hot inputs have a diagonal second moment, how often each row is looked up."""
        _, row, _ = self.uses
        return Frequencies(row, self.shape[0], len(row))

    def matrix(self, flat: Shaped[Tensor, " d"]) -> Shaped[Tensor, "e v"]:
        """See ``Factor``."""
        return flat.view(self.shape).mT

    def rotated(self, left: Eigenbasis, right: Eigenbasis) -> Embedding:
        """See ``Factor``; A is diagonal."""
        g = left.into(self.g.mT).mT
        return replace(self, g=g, shape=(self.shape[0], g.shape[3]))

    def rotated_order(self, values: Float[Tensor, "m w"]) -> Float[Tensor, "m w"]:
        """See ``Factor``: a table has its rows, the inputs, first."""
        return values.unflatten(1, (-1, self.shape[0])).mT.flatten(1)

    def covariances(self, variances: Float[Tensor, "m d"]) -> Float[Tensor, "m n k k"]:
        """See ``Factor``; from the rows that were looked up."""
        if len(variances) == 1:
            return self.covariance(variances[0])[None]
        example, row, summed = self.used
        own = variances.view(len(variances), *self.shape)[:, row]
        each = contracted(summed, own.transpose(0, 1))
        n = self.index.shape[0]
        k = summed.shape[1]
        return each.new_zeros(len(variances), n, k, k).index_add_(1, example, each)

    def covariances_under(self, spectra: ShiftedSpectra) -> Float[Tensor, "m n k k"]:
        """See ``Factor``; with variances of the rows that were looked up."""
        example, row, summed = self.used
        own = spectra.turned.variances(row)
        each = contracted(summed, own.transpose(0, 1))
        n = self.index.shape[0]
        k = summed.shape[1]
        return each.new_zeros(len(own), n, k, k).index_add_(1, example, each)

    def narrowed(self, other: Factor, variance: Float[Tensor, " d"]) -> tuple[Factor, Factor, Float[Tensor, " used"]]:
        """See ``Factor``: with those rows of the table alone that one of both looked up."""
        if not isinstance(other, Embedding):
            return self, other, variance
        used = torch.cat([self.index.flatten(), other.index.flatten()]).unique()
        padding = None
        if self.padding is not None and bool((used == self.padding).any()):
            padding = int((used < self.padding).sum())
        shape = (len(used), self.shape[1])
        narrow = replace(self, index=torch.searchsorted(used, self.index), shape=shape, padding=padding)
        beside = narrow
        if self is not other:
            beside = replace(narrow, index=torch.searchsorted(used, other.index), g=other.g)
        return narrow, beside, variance.view(self.shape[0], -1)[used].flatten()


@final
@dataclass(frozen=True, eq=False)
class Frequencies(Moment):
    """How often each row of a table is looked up: the second moment of one-hot vectors, which is diagonal.

    Args:
        row: The row of each position.
        rows: Rows of the table.
        count: See ``Moment``.
    """

    row: Int[Tensor, " m"]
    rows: int
    count: int

    @property
    def few(self) -> bool:
        """See ``Moment``."""
        return False

    def columns(self) -> Float[Tensor, "v m"]:
        """See ``Moment``."""
        return wide(torch.nn.functional.one_hot(self.row, self.rows)).mT

    def total(self) -> Float[Tensor, " v"]:
        """See ``Moment``."""
        return wide(torch.bincount(self.row, minlength=self.rows))
