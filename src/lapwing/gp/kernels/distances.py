"""Squared distances between inputs: by a matrix product, and by differences where the product loses digits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lapwing.gp.kernels.base import ALL, Index
from lapwing.ground.precision import wide
from lapwing.ground.tracing import traced

MARGIN = 16
"""Rounding that the product may leave in a square, in units of its last place: it may lose four binary digits."""

FEW = 1 / 16
"""Part of a tile's entries up to which they are computed again one by one, instead of the whole tile."""


@final
@dataclass(frozen=True, eq=False)
class SquaredDistances:
    """``|(a_i - b_j) / ψ|²``, a tile at a time, right to some units of the last place wherever the inputs are.

        |a_i - b_j|² = |a_i|² + |b_j|² - 2 a_i·b_j

    is one matrix product, in float64, around the median of b. Where the left is much smaller than what the right adds
    up, its digits cancel, and it is computed from differences of the inputs as they came. Squares are neither quite
    0, so that their roots have derivatives, nor infinite.

    Args:
        a: Rows of inputs.
        b: Others.
        scale: ψ, one a column.
        left: ``[-2 a, |a|², 1]`` around the median and in units of ψ.
        right: ``[b, 1, |b|²]`` likewise.

    Cost:
        ``p + 2`` multiplications an entry; by differences ``3 p`` passes over the tile, which is what two or three
        columns mostly take.

    Example:
        >>> far = torch.tensor([[1e9], [1e9 + 0.5]], dtype=torch.float64)
        >>> SquaredDistances.between(far, torch.cat([far, torch.zeros(1, 1)]), torch.tensor(2.0))(slice(1), slice(3))
        tensor([[2.2251e-308, 6.2500e-02, 2.5000e+17]], dtype=torch.float64)
    """

    a: Float[Tensor, "n p"]
    b: Float[Tensor, "m p"]
    scale: Float[Tensor, " p"]
    left: Float[Tensor, "n q"]
    right: Float[Tensor, "m q"]

    @classmethod
    def between(cls, a: Float[Tensor, "n p"], b: Float[Tensor, "m p"], scale: Float[Tensor, "..."]) -> SquaredDistances:
        """The distances between two blocks of inputs.

        Args:
            a: Rows of inputs.
            b: Others.
            scale: ψ, one for all columns or one a column.
        """
        scale = scale.expand(a.shape[1])
        centre = wide(b.detach()).median(0).values if len(b) else wide(b.new_zeros(b.shape[1]))
        own = (wide(a) - centre) / wide(scale)
        other = (wide(b) - centre) / wide(scale)
        left = torch.cat([-2 * own, own.square().sum(1, keepdim=True), own.new_ones(own.shape[0], 1)], 1)
        right = torch.cat([other, other.new_ones(other.shape[0], 1), other.square().sum(1, keepdim=True)], 1)
        return cls(a, b, scale, left, right)

    def __call__(self, i: Index, j: Index) -> Float[Tensor, "k l"]:
        """Some of them.

        Args:
            i: Rows.
            j: Columns.
        """
        if traced():
            return self._bounded(self._differences(i, j))
        left = self.left[i]
        right = self.right[j]
        if not len(left) or not len(right):
            return self.a.new_zeros(len(left), len(right))
        largest = float(left[:, -2].detach().max() + right[:, -1].detach().max())
        if not math.isfinite(largest):
            return self._bounded(self._differences(i, j))
        squares = left @ right.mT
        lost = squares.detach() < self._resolved * largest
        count = int(lost.count_nonzero())
        if count > FEW * lost.numel():
            return self._bounded(self._differences(i, j))
        found = squares.to(self.a)
        return self._bounded(self._repaired(found, lost, i, j) if count else found)

    def weighted(self, weight: Float[Tensor, "n m"]) -> Float[Tensor, " p"]:
        """``Σ_ij P_ij (a_ik - b_jk)² / ψ_k²`` for each column k.

        By products with P around the median of b, unless they lose half of the digits.

        Args:
            weight: P.
        """
        largest = float(self.left[:, -2].max() + self.right[:, -1].max())
        if not largest * torch.finfo(self.a.dtype).eps ** 0.5 < 1:
            sums = list[Tensor]()
            for column in range(len(self.scale)):
                square = self._bounded(self._difference(ALL, ALL, column).square())
                sums.append((weight * square).sum())
            return torch.stack(sums)
        own = (-0.5 * self.left[:, :-2]).to(weight)
        other = self.right[:, :-2].to(weight)
        squares = (weight.sum(1)[:, None] * own.square()).sum(0) + (weight.sum(0)[:, None] * other.square()).sum(0)
        return squares - 2 * (own * (weight @ other)).sum(0)

    @cached_property
    def _resolved(self) -> float:
        """Part of the largest sum of squares down to which the product is right to ``MARGIN``."""
        return torch.finfo(torch.float64).eps / (MARGIN * torch.finfo(self.a.dtype).eps)

    def _difference(self, i: Index, j: Index, column: int) -> Float[Tensor, "k l"]:
        """``(a_i - b_j) / ψ`` of one column."""
        return (self.a[i, column, None] - self.b[j, column]) / self.scale[column]

    def _differences(self, i: Index, j: Index) -> Float[Tensor, "k l"]:
        """A tile by differences, a column at a time."""
        total = self._difference(i, j, 0).square()
        for column in range(1, len(self.scale)):
            difference = self._difference(i, j, column)
            total = torch.addcmul(total, difference, difference)
        return total

    def _repaired(
        self, squares: Float[Tensor, "k l"], lost: Bool[Tensor, "k l"], i: Index, j: Index
    ) -> Float[Tensor, "k l"]:
        """A tile whose lost entries are computed again by differences."""
        rows, columns = lost.nonzero(as_tuple=True)
        exact = ((self.a[i][rows] - self.b[j][columns]) / self.scale).square().sum(1)
        return squares.index_put((rows, columns), exact)

    def _bounded(self, squares: Float[Tensor, "k l"]) -> Float[Tensor, "k l"]:
        """Squares that have a root with a derivative, and whose square is finite."""
        limits = torch.finfo(squares.dtype)
        return squares.clamp_(limits.tiny, limits.max**0.5)
