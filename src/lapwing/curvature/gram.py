"""The tangent kernel J A⁻¹ Jᵀ, layer by layer: between chunks of data, and of each example for many A at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data import Inputs, chunks, count, take
from lapwing.jacobian.layers.factors import Factor, Outer, Rows
from lapwing.jacobian.layers.lookup import Lookup
from lapwing.jacobian.model import BUDGET, Model
from lapwing.likelihoods.base import identity_cotangents

SHARE = 8
"""One in so many bytes of the budget is for the explicit rows of a layer: both sides, with copies, beside factors."""


@final
@dataclass(frozen=True, eq=False)
class RowBlock:
    """A chunk of data as rows of the Jacobian: one for each example and cotangent, held as layer factors."""

    factors: list[Factor]
    count: int


@final
@dataclass(frozen=True, eq=False)
class TangentKernel:
    """The tangent kernel of a network between chunks of data.

    Args:
        model: The network and its likelihood.
    """

    model: Model

    def rows(self, inputs: Inputs, cotangents: Float[Tensor, "k n ..."] | None = None) -> Iterator[RowBlock]:
        """RowBlock ``uᵀ J`` of some inputs, chunk by chunk, example by example.

        Args:
            inputs: n examples.
            cotangents: Directions u, canonical; ``None`` takes every output of every event position.
        """
        size = self.model.chunk(self.model.width, BUDGET)
        for place, part in chunks(inputs, min(size, count(inputs))):
            forward = self.model.forward(part)
            if cotangents is None:
                directions = torch.cat(list(identity_cotangents(forward.outputs)))
            else:
                directions = cotangents[:, place]
            factors = [factor.double() for factor in forward.factors(directions)]
            yield RowBlock(factors, directions.shape[0] * directions.shape[1])

    def gram(self, left: RowBlock, right: RowBlock, variance: Float[Tensor, " d"]) -> Float[Tensor, "m m2"]:
        """``J_left diag(variance) J_rightᵀ``.

        Args:
            left: RowBlock, m of them.
            right: RowBlock, m2 of them.
            variance: Prior variance of each uncertain weight.

        Cost:
            For a layer whose weight is used at one position and has one variance ``m m2 (o + i)``; otherwise explicit
            rows of both chunks, of so many examples at a time that they fit ``BUDGET``.
        """
        network = self.model.network
        variance = network.spread(variance)
        total = variance.new_zeros(left.count, right.count)
        for a, b in zip(left.factors, right.factors, strict=True):
            weights = network.part(a.names, variance)
            if bool(weights.any()):
                total += factor_gram(a, b, weights)
        return total

    def cross(
        self,
        inputs: Inputs,
        training: Inputs,
        cotangents: Float[Tensor, "k n ..."],
        variance: Float[Tensor, " d"],
    ) -> Float[Tensor, "m m2"]:
        """Kernel between every output of ``inputs`` and the rows of training data.

        Cost:
            For each chunk of ``inputs`` a forward and k backward passes over the training data.
        """
        blocks = [
            torch.cat([self.gram(left, right, variance) for right in self.rows(training, cotangents)], dim=1)
            for left in self.rows(inputs)
        ]
        return torch.cat(blocks)

    def training_grams(
        self, training: Inputs, cotangents: Float[Tensor, "k n ..."], variances: Sequence[Float[Tensor, " d"]]
    ) -> Float[Tensor, "g m m"]:
        """Kernels between all rows of training data, one for each vector of prior variances.

        Cost:
            For each chunk a forward and k backward passes over it and the chunks after it.
        """
        width, n = cotangents.shape[:2]
        grams = variances[0].new_empty(len(variances), width * n, width * n)
        row = 0
        for left in self.rows(training, cotangents):
            column, rest = row, slice(row // width, None)
            rows = slice(row, row + left.count)
            for right in self.rows(take(training, rest), cotangents[:, rest]):
                columns = slice(column, column + right.count)
                for gram, variance in zip(grams, variances, strict=True):
                    gram[rows, columns] = self.gram(left, right, variance)
                    gram[columns, rows] = gram[rows, columns].mT.clone()
                column += right.count
            own = grams[:, rows, rows]
            own.copy_((own + own.mT) / 2)
            row += left.count
        return grams


def factor_gram(left: Factor, right: Factor, variance: Float[Tensor, " d"]) -> Float[Tensor, "m m2"]:
    """``J diag(variance) Jᵀ`` of one layer between two chunks."""
    constant = bool((variance == variance[0]).all())
    if constant and isinstance(left, Outer) and isinstance(right, Outer) and left.positions == right.positions == 1:
        inputs = torch.einsum("npi,mpi->pnm", left.columns.squeeze(-1), right.columns.squeeze(-1))
        gradients = torch.einsum("nkpo,mlpo->pnkml", left.g.squeeze(-1), right.g.squeeze(-1))
        gram = (gradients * inputs[:, :, None, :, None]).sum(0)
        return variance[0] * gram.flatten(0, 1).flatten(1)
    return blockwise(*narrowed(left, right, variance))


def blockwise(
    left: Factor,
    right: Factor,
    variance: Float[Tensor, " d"],
    turned: Callable[[Factor], Factor] | None = None,
) -> Float[Tensor, "m m2"]:
    """``J_left diag(variance) J_rightᵀ`` of one layer, from the explicit rows of a few examples at a time.

    Args:
        left: The layer's factor on m / k examples.
        right: That on others, or the same one.
        variance: Of each weight, in the basis that ``turned`` leads to.
        turned: To a basis in which the covariance of the weights is diagonal; ``None`` where it is.
    """
    (n, k), m = left.g.shape[:2], len(right.g)
    size = max(1, BUDGET // (SHARE * k * len(variance) * left.g.itemsize))
    root = variance.sqrt()

    def rows(factor: Factor, start: int) -> Float[Tensor, "m d"]:
        some = factor.taken(slice(start, start + size))
        return ((some if turned is None else turned(some)).rows() * root).flatten(0, 1)

    blocks = []
    for i in range(0, n, size):
        own = rows(left, i)
        row = [own @ (own if left is right and i == j else rows(right, j)).mT for j in range(0, m, size)]
        blocks.append(torch.cat(row, dim=1))
    return torch.cat(blocks)


def narrowed(
    left: Factor, right: Factor, variance: Float[Tensor, " d"]
) -> tuple[Factor, Factor, Float[Tensor, " used"]]:
    """Factors and variances with only those rows of an embedding's table that one of both looked up."""
    if not (isinstance(left, Lookup) and isinstance(right, Lookup)):
        return left, right, variance
    used = torch.cat([left.index.flatten(), right.index.flatten()]).unique()
    kept = left.padding is not None and bool((used == left.padding).any())
    padding = int((used < left.padding).sum()) if kept else None
    shape = (len(used), left.shape[1])
    narrow = replace(left, index=torch.searchsorted(used, left.index), shape=shape, padding=padding)
    other = narrow if left is right else replace(narrow, index=torch.searchsorted(used, right.index), g=right.g)
    return narrow, other, variance.view(left.shape)[used].flatten()


def explicit(factor: Factor) -> Factor:
    """A layer whose weights are shared between positions as rows, made once for all that is asked of them."""
    if isinstance(factor, Outer) and factor.positions > 1:
        return Rows(factor.weight, factor.bias, factor.rows())
    return factor


NUMBERS = 2**19
"""Products of rows made at a time: few enough to stay in a processor's cache."""


WIDTH = 512
"""Columns of them, at most: enough for a matrix product."""


def covariances(factor: Factor, variances: Float[Tensor, "m d"]) -> Float[Tensor, "m n k k"]:
    """``J diag(v) Jᵀ`` of each example for each variance v.

    Args:
        factor: What a layer contributes to the Jacobian.
        variances: v, in the order of the factor's weights.

    Cost:
        For each row the products with the others, and a matrix product of them with the variances; about a quarter of
        as many calls of ``factor.covariance``.
    """
    if len(variances) == 1:
        return factor.covariance(variances[0])[None]
    if isinstance(factor, Outer) and factor.positions == 1:
        scale = torch.stack([factor.matrix(variance) for variance in variances])
        spread = torch.einsum("npi,mpoi->nmpo", factor.columns.squeeze(-1).square(), scale)
        return contracted(factor.g.squeeze(-1).flatten(2), spread.flatten(2))
    if isinstance(factor, Lookup):
        example, row, summed = factor.used
        each = contracted(summed, variances.view(len(variances), *factor.shape)[:, row].transpose(0, 1))
        n, k = factor.index.shape[0], summed.shape[1]
        return each.new_zeros(len(variances), n, k, k).index_add_(1, example, each)
    return contracted(factor.rows(), variances)


def contracted(rows: Float[Tensor, "n k d"], variances: Float[Tensor, "*n m d"]) -> Float[Tensor, "m n k k"]:
    """``R diag(v) Rᵀ`` of each block of rows R.

    Args:
        rows: R.
        variances: v, the same for all blocks or for each its own.

    Example:
        >>> contracted(torch.ones(1, 2, 3), torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 1.0]])).tolist()
        [[[[3.0, 3.0], [3.0, 3.0]]], [[[1.0, 1.0], [1.0, 1.0]]]]
    """
    n, k, d = rows.shape
    one, other = torch.triu_indices(k, k, device=rows.device)
    found = rows.new_zeros(n, len(one), variances.shape[-2])
    each = max(1, NUMBERS // (WIDTH * max(1, len(one))))
    for first in range(0, n, each):
        some = slice(first, first + each)
        own = variances if variances.ndim == 2 else variances[some]
        for start in range(0, d, WIDTH):
            part = rows[some, :, start : start + WIDTH]
            products = torch.cat([part[:, i, None] * part[:, i:] for i in range(k)], 1)
            found[some] += products @ own[..., start : start + WIDTH].mT
    whole = found.new_empty(n, k, k, found.shape[-1])
    whole[:, one, other] = found
    whole[:, other, one] = found
    return whole.movedim(-1, 0)
