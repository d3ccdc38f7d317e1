"""What one layer contributes to the Jacobian, held as factors: J = sum_t g_t a_tᵀ, never as an n × c × d array.

Every class answers the same three questions about the columns of the Jacobian that belong to its parameters (in the
order of ``names``): its explicit ``rows``, the ``square_sum`` of each column, and the ``covariance`` J diag(v) Jᵀ
of each example. n examples, k cotangents (outputs, or columns of a root), t positions that share the weight.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias, final

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from lapwing.jacobian.layers.columns import Columns


@final
@dataclass(frozen=True, eq=False)
class Outer:
    """A linear map or convolution, with its bias: weight gradient ``sum_t g_t a_tᵀ``, bias gradient ``sum_t g_t``.

    Args:
        weight: Name of the weight, ``None`` where it is not uncertain.
        bias: Name of the bias, ``None`` where there is none or it is not uncertain.
        a: The layer's inputs, in p independent groups of i.
        g: Gradients at the layer's output, o to a group.
    """

    weight: str | None
    bias: str | None
    a: Columns
    g: Float[Tensor, "n k p o t"]

    @property
    def names(self) -> tuple[str, ...]:
        """Parameters this factor speaks for, weight first."""
        return tuple(name for name in (self.weight, self.bias) if name is not None)

    @property
    def positions(self) -> int:
        """Positions t that share the weight."""
        return self.g.shape[-1]

    @cached_property
    def columns(self) -> Float[Tensor, "n p i t"]:
        """The layer's inputs as columns, with a last input of ones where the bias is uncertain."""
        ones = int(self.bias is not None)
        if self.weight is not None:
            return self.a.columns(ones)
        return self.g.new_ones(()).expand(self.g.shape[0], self.g.shape[2], ones, self.positions)

    @property
    def matrices(self) -> Float[Tensor, "n k p o i"]:
        """The Jacobian of each example and cotangent, as a matrix with the bias in the last column."""
        return outer(self.g, self.columns)

    def rows(self) -> Float[Tensor, "n k d"]:
        """The explicit Jacobian of these parameters."""
        return self.flat(self.matrices)

    def square_sum(self) -> Float[Tensor, " d"]:
        """``sum_nk J²`` of each weight: the diagonal of ``Jᵀ J``."""
        if self.positions > 1:
            return self.flat(self.matrices.square_().sum((0, 1)))
        g, a = self.g.squeeze(-1).square().sum(1), self.columns.squeeze(-1).square()
        return self.flat(torch.einsum("npo,npi->poi", g, a))

    def covariance(self, variance: Float[Tensor, " d"]) -> Float[Tensor, "n k k"]:
        """``J diag(variance) Jᵀ`` of each example."""
        scale = self.matrix(variance)
        if self.positions > 1:
            root = (self.matrices * scale.sqrt()).flatten(2)
            return root @ root.mT
        g, a = self.g.squeeze(-1), self.columns.squeeze(-1)
        root = (g * torch.einsum("npi,poi->npo", a.square(), scale).sqrt().unsqueeze(1)).flatten(2)
        return root @ root.mT

    def flat(self, matrices: Float[Tensor, "... p o i"]) -> Float[Tensor, "... d"]:
        """Matrices with the bias in the last column, as flat weights in the order of ``names``."""
        if self.weight is None or self.bias is None:
            return matrices.flatten(-3)
        return torch.cat([matrices[..., :-1].flatten(-3), matrices[..., -1].flatten(-2)], dim=-1)

    def matrix(self, flat: Shaped[Tensor, " d"]) -> Shaped[Tensor, "p o i"]:
        """Flat weights in the order of ``names`` as matrices with the bias in the last column."""
        p, o = self.g.shape[2:4]
        if self.weight is None or self.bias is None:
            return flat.view(p, o, -1)
        return torch.cat([flat[: -p * o].view(p, o, -1), flat[-p * o :].view(p, o, 1)], dim=-1)


@final
@dataclass(frozen=True, eq=False)
class Lookup:
    """An embedding: the gradient of row v is the sum of ``g_t`` over the positions that looked v up.

    Args:
        weight: Name of the table.
        shape: Its rows and width, ``(v, e)``.
        index: The row each position looked up.
        g: Gradients at the embedding's output.
        padding: Row that has no gradient.
    """

    weight: str
    shape: tuple[int, int]
    index: Int[Tensor, "n t"]
    g: Float[Tensor, "n k t e"]
    padding: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The table's name."""
        return (self.weight,)

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
        """``sum_nk J²`` of each entry of the table."""
        _, row, summed = self.used
        return self.g.new_zeros(self.shape).index_add_(0, row, summed.square().sum(1)).flatten()

    def covariance(self, variance: Float[Tensor, " d"]) -> Float[Tensor, "n k k"]:
        """``J diag(variance) Jᵀ`` of each example."""
        example, row, summed = self.used
        products = (summed * variance.view(self.shape)[row].unsqueeze(1)) @ summed.mT
        k = self.g.shape[1]
        return self.g.new_zeros(self.index.shape[0], k, k).index_add_(0, example, products)


@final
@dataclass(frozen=True, eq=False)
class Rows:
    """Any other parameters, their Jacobian explicit: the affine part of norms, and layers without a rule.

    Args:
        names: Parameters, in the order in which they fill the last axis.
        values: The Jacobian.
    """

    names: tuple[str, ...]
    values: Float[Tensor, "n k d"]

    def rows(self) -> Float[Tensor, "n k d"]:
        """The explicit Jacobian."""
        return self.values

    def square_sum(self) -> Float[Tensor, " d"]:
        """``sum_nk J²`` of each weight."""
        return self.values.square().sum((0, 1))

    def covariance(self, variance: Float[Tensor, " d"]) -> Float[Tensor, "n k k"]:
        """``J diag(variance) Jᵀ`` of each example."""
        root = self.values * variance.sqrt()
        return root @ root.mT


Factor: TypeAlias = Outer | Lookup | Rows
"""What a layer contributes to the Jacobian of a batch."""


def in_double(factor: Factor) -> Factor:
    """The same factor with its numbers in float64: products of many terms then cancel as they should."""
    if isinstance(factor, Outer):
        return replace(factor, a=factor.a.double(), g=factor.g.double())
    if isinstance(factor, Lookup):
        return replace(factor, g=factor.g.double())
    return Rows(factor.names, factor.values.double())


def taken(factor: Factor, place: slice) -> Factor:
    """The factor of some of its examples."""
    if isinstance(factor, Outer):
        return replace(factor, a=factor.a.taken(place), g=factor.g[place])
    if isinstance(factor, Lookup):
        return replace(factor, index=factor.index[place], g=factor.g[place])
    return Rows(factor.names, factor.values[place])


def outer(g: Float[Tensor, "n k p o t"], a: Float[Tensor, "n p i t"]) -> Float[Tensor, "n k p o i"]:
    """``sum_t g_t a_tᵀ`` for every example and cotangent, as one batched matrix product."""
    n, k, p, o, t = g.shape
    left = g.transpose(1, 2).reshape(n * p, k * o, t)
    product = left @ a.reshape(n * p, -1, t).mT
    return product.view(n, p, k, o, -1).transpose(1, 2)
