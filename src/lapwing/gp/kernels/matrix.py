"""Kernel matrices: products, rows and derivatives a tile at a time; written out only where they are small."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.gp.kernels.base import Entries, Kernel
from lapwing.ground.errors import TooLargeError
from lapwing.linalg import Dense, Operator
from lapwing.linear.gauss_newton import PSDOperator

SIDE = 384
"""Rows and columns of K that a processor holds at once: few passes over what stays in its cache are fastest."""

BROAD = 4096
"""The same on an accelerator, which has to be given much to do at once: 64 MiB a tile in float32."""

WIDE = 1024
"""The same where derivatives are taken, whose graphs cost as much for small tiles as for large ones."""

CACHE = 2**31
"""Bytes a kernel matrix may take to be kept for further products (2 GiB): 23,170 rows in float32, 16,384 in float64."""

DENSE = 2**31
"""Bytes a kernel matrix that is written out may take (2 GiB)."""


@final
@dataclass(frozen=True, eq=False, repr=False)
class KernelMatrix(PSDOperator):
    """``K_ij = k(x_i, x_j)``, a tile at a time: 384 x 384 entries in a processor's cache.

    Args:
        kernel: k.
        inputs: x, ``[n, p]``.

    Cost:
        A product with any number of columns evaluates half of the entries, for K is symmetric. Where all of them take
        at most 2 GiB the first product keeps them, and further ones evaluate none.

    Example:
        >>> from lapwing.gp.kernels.stationary import RBF
        >>> K = KernelMatrix(RBF(), torch.tensor([[0.0], [1.0]]))
        >>> K @ torch.tensor([1.0, 0.0]), K.diagonal()
        (tensor([1.0000, 0.6065]), tensor([1., 1.]))
    """

    kernel: Kernel
    inputs: Float[Tensor, "n p"]

    @property
    def shape(self) -> tuple[int, int]:
        """The number of inputs, twice."""
        return (len(self.inputs), len(self.inputs))

    @property
    def root(self) -> Operator:
        """A Cholesky factor, written out."""
        return Dense(self.dense()).root()

    @cached_property
    def _entries(self) -> Entries:
        with torch.no_grad():
            return self.kernel.between(self.inputs, self.inputs)

    @cached_property
    def _cached(self) -> Float[Tensor, "n n"] | None:
        """All of it, where there is room: computed by the first product, for further ones."""
        return self._dense() if len(self.inputs) ** 2 * self.inputs.element_size() <= CACHE else None

    def diagonal(self) -> Float[Tensor, " n"]:
        """``k(x_i, x_i)``."""
        with torch.no_grad():
            return self.kernel.diagonal(self.inputs)

    def rows(self, index: Int[Tensor, " r"], columns: Int[Tensor, " m"] | None = None) -> Float[Tensor, "r m"]:
        """Some rows of K.

        Args:
            index: Which.
            columns: Of these columns; ``None`` for all.
        """
        with torch.no_grad():
            found = self.inputs.new_empty(len(index), len(self.inputs) if columns is None else len(columns))
            if columns is None:
                for i, j, tile in self._across(index):
                    found[i, j] = tile
                return found
            for i, j in tiles(len(index), len(columns), side_of(self.inputs)):
                found[i, j] = self._entries(index[i], columns[j])
        return found

    def product_rows(self, index: Int[Tensor, " r"], block: Float[Tensor, "n k"]) -> Float[Tensor, "r k"]:
        """Some rows of a product with a block, a tile at a time.

        Args:
            index: Which.
            block: What is multiplied.
        """
        if self._cached is not None:
            return self._cached[index] @ block
        return self._tiled_rows(index, block)

    def _tiled_rows(self, index: Int[Tensor, " r"], block: Float[Tensor, "n k"]) -> Float[Tensor, "r k"]:
        """The same without K at hand."""
        found = block.new_zeros(len(index), block.shape[1])
        with torch.no_grad():
            for i, j, tile in self._across(index):
                found[i] += tile @ block[j]
        return found

    def _across(self, index: Int[Tensor, " r"]) -> Iterator[tuple[slice, slice, Float[Tensor, "a b"]]]:
        """Tiles of some rows, without the rounding of distances that are 0."""
        own = self.kernel.diagonal(self.inputs[index])
        for i, j in tiles(len(index), len(self.inputs), side_of(self.inputs)):
            tile = self._entries(index[i], j)
            places = index[i] - j.start
            inside = ((places >= 0) & (places < tile.shape[1])).nonzero()[:, 0]
            tile[inside, places[inside]] = own[i][inside]
            yield i, j, tile

    def features(
        self, count: int, generator: torch.Generator, index: Int[Tensor, " m"] | None = None
    ) -> Float[Tensor, "m D"]:
        """Random features of the kernel at the inputs.

        Args:
            count: Features D.
            generator: Source of randomness.
            index: At which of them; ``None`` for all.
        """
        inputs = self.inputs if index is None else self.inputs[index]
        with torch.no_grad():
            return self.kernel.features(count, inputs, generator)(inputs)

    @property
    def _like(self) -> Tensor:
        return self.inputs

    def _matmat(self, block: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        if self._cached is not None:
            return (block.mT.contiguous() @ self._cached).mT  # few rows in front are faster than few columns behind
        return self._tiled_product(block)

    def _tiled_product(self, block: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        """A product without K at hand."""
        total = torch.zeros_like(block)
        with torch.no_grad():
            for i, j in self.tiles(side_of(self.inputs)):
                tile = self.tile(i, j)
                total[i] += tile @ block[j]
                if i != j:
                    total[j] += tile.mT @ block[i]
        return total

    def _dense(self) -> Float[Tensor, "n n"]:
        whole = self.inputs.new_empty(self.shape)
        with torch.no_grad():
            for i, j in self.tiles(side_of(self.inputs)):
                tile = self.tile(i, j)
                whole[i, j] = tile
                whole[j, i] = tile.mT
        return whole

    def tiles(self, side: int) -> Iterator[tuple[slice, slice]]:
        """Rows and columns of the tiles on and above the diagonal."""
        parts = [slice(i, i + side) for i in range(0, len(self.inputs), side)]
        return ((i, j) for i in parts for j in parts if i.start <= j.start)

    def tile(self, i: slice, j: slice) -> Float[Tensor, "a b"]:
        """One of them; on the diagonal symmetric, and without the rounding of distances that are 0.

        Args:
            i: Rows.
            j: Columns.
        """
        found = self._entries(i, j)
        if i != j:
            return found
        return torch.diagonal_scatter(0.5 * (found + found.mT), self.kernel.diagonal(self.inputs[i]))


def side_of(like: Tensor) -> int:
    """Rows and columns of a tile, where such a tensor is."""
    return SIDE if like.device.type == "cpu" else BROAD


def tiles(rows: int, columns: int, side: int) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of the tiles of a matrix; fewer rows make longer ones."""
    high = max(1, min(side, rows))
    wide = side**2 // high
    for i in range(0, rows, high):
        for j in range(0, columns, wide):
            yield slice(i, min(i + high, rows)), slice(j, min(j + wide, columns))


def check_room(what: str, shape: tuple[int, ...], like: Tensor, hint: str) -> None:
    """Refuse what would take more than 2 GiB.

    Raises:
        TooLargeError: Naming its shape and bytes.
    """
    needed = math.prod(shape) * like.element_size()
    if needed > DENSE:
        got = f"{' x '.join(f'{side:,}' for side in shape)} entries, which need {needed:,} bytes"
        raise TooLargeError(f"{what} of at most {DENSE:,} bytes", got, hint)


def gram(kernel: Kernel, x: Float[Tensor, "n p"]) -> Float[Tensor, "n n"]:
    """``k(x_i, x_j)``, symmetric, its diagonal exact; differentiable in x, where it asks for its gradient.

    Raises:
        TooLargeError: If it would take more than 2 GiB.
    """
    if not x.requires_grad:
        return KernelMatrix(kernel, x).dense()
    found = cross(kernel, x, x)
    return torch.diagonal_scatter((found + found.mT) / 2, kernel.diagonal(x))


def cross(kernel: Kernel, a: Float[Tensor, "n p"], b: Float[Tensor, "m p"]) -> Float[Tensor, "n m"]:
    """``k(a_i, b_j)``, written out a tile at a time, so that its intermediate results stay small.

    Raises:
        TooLargeError: If it would take more than 2 GiB.
    """
    check_room("a kernel matrix", (len(a), len(b)), a, "fewer inputs at a time")
    entries = kernel.between(a, b)
    found = a.new_empty(len(a), len(b))
    for i, j in tiles(len(a), len(b), side_of(a)):
        found[i, j] = entries(i, j)
    return found


def cross_product(
    kernel: Kernel | tuple[Kernel, ...], a: Float[Tensor, "n p"], b: Float[Tensor, "m p"], block: Float[Tensor, "m k"]
) -> Float[Tensor, "n k"]:
    """``K_ab V``, a tile at a time; differentiable in a, where it asks for its gradient.

    Of several kernels each multiplies the columns of its output, which stand together with those of other outputs.

    Cost:
        ``n m`` entries, held at once only where gradients are asked for.
    """
    if isinstance(kernel, tuple):
        parts = [cross_product(each, a, b, block[:, output :: len(kernel)]) for output, each in enumerate(kernel)]
        return torch.stack(parts, 2).flatten(1)
    entries = kernel.between(a, b)
    found = a.new_zeros(len(a), block.shape[1])
    for i, j in tiles(len(a), len(b), side_of(a)):
        found[i] += entries(i, j) @ block[j]
    return found


def weighted_gradient(
    matrix: KernelMatrix, weight: Callable[[slice, slice], Float[Tensor, "a b"]]
) -> Float[Tensor, " h"]:
    """The gradient of ``Σ_ij W_ij K_ij`` in the kernel's ``hyper`` for a symmetric W, tile by tile.

    Args:
        matrix: K.
        weight: The entries of W at some rows and columns, on or above the diagonal.

    Cost:
        Half of the entries of K, and their derivatives; memory of a tile of them.
    """
    x = matrix.inputs
    with torch.no_grad():
        parts = [
            matrix.kernel.gradient(x[i], x[j], weight(i, j)) * (1 if i == j else 2)
            for i, j in matrix.tiles(max(WIDE, side_of(x)))
        ]
    return torch.stack(parts).sum(0)
