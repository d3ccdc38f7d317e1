"""Kernel matrices that are never written out: products, rows and derivatives a tile at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.errors import TooLargeError
from lapwing.linalg import Dense, Operator
from lapwing.linear.gauss_newton import Gram
from lapwing.methods.gp.kernels import Kernel

TILE = 2**20
"""Entries of K that are held at once; what fits a processor's cache is also fastest."""

DENSE = 2**31
"""Bytes a kernel matrix that is written out may take (2 GiB)."""


@final
@dataclass(frozen=True, eq=False, repr=False)
class KernelMatrix(Gram):
    """``K_ij = k(x_i, x_j)``, a tile of 2²⁰ entries at a time.

    Args:
        kernel: k.
        inputs: x, ``[n, p]``.

    Cost:
        A product with any number of columns evaluates half of the entries, for K is symmetric.

    Example:
        >>> from lapwing.methods.gp.stationary import RBF
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

    def diagonal(self) -> Float[Tensor, " n"]:
        """``k(x_i, x_i)``."""
        with torch.no_grad():
            return self.kernel.diagonal(self.inputs)

    def rows(self, index: Int[Tensor, " r"]) -> Float[Tensor, "r n"]:
        """Some rows of K.

        Args:
            index: Which.
        """
        with torch.no_grad():
            found = cross(self.kernel, self.inputs[index], self.inputs)
        found[torch.arange(len(index), device=index.device), index] = self.kernel.diagonal(self.inputs[index])
        return found

    @property
    def _like(self) -> Tensor:
        return self.inputs

    def _matmat(self, block: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        total = torch.zeros_like(block)
        with torch.no_grad():
            for i, j in self.tiles():
                tile = self.tile(self.kernel, i, j)
                total[i] += tile @ block[j]
                if i != j:
                    total[j] += tile.mT @ block[i]
        return total

    def _dense(self) -> Float[Tensor, "n n"]:
        whole = self.inputs.new_empty(self.shape)
        with torch.no_grad():
            for i, j in self.tiles():
                tile = self.tile(self.kernel, i, j)
                whole[i, j], whole[j, i] = tile, tile.mT
        return whole

    def tiles(self) -> Iterator[tuple[slice, slice]]:
        """Rows and columns of the tiles on and above the diagonal."""
        n, side = len(self.inputs), int(TILE**0.5)
        starts = range(0, n, side)
        for i in starts:
            for j in range(i, n, side):
                yield slice(i, min(i + side, n)), slice(j, min(j + side, n))

    def tile(self, kernel: Kernel, i: slice, j: slice) -> Float[Tensor, "a b"]:
        """One of them; on the diagonal symmetric, and without the rounding of distances that are 0."""
        found = kernel(self.inputs[i], self.inputs[j])
        if i != j:
            return found
        return torch.diagonal_scatter(0.5 * (found + found.mT), kernel.diagonal(self.inputs[i]))


def cross(kernel: Kernel, a: Float[Tensor, "n p"], b: Float[Tensor, "m p"]) -> Float[Tensor, "n m"]:
    """``k(a_i, b_j)``, written out a tile at a time, so that its intermediate results stay small.

    Raises:
        TooLargeError: If it would take more than 2 GiB.
    """
    needed = len(a) * len(b) * a.element_size()
    if needed > DENSE:
        raise TooLargeError(
            f"a kernel matrix of at most {DENSE:,} bytes",
            f"{len(a):,} x {len(b):,} entries, which need {needed:,} bytes",
            "fewer inputs at a time",
        )
    step = max(1, TILE // max(1, len(a)))
    return torch.cat([kernel(a, part) for part in b.split(step)], 1)


def cross_product(
    kernel: Kernel, a: Float[Tensor, "n p"], b: Float[Tensor, "m p"], block: Float[Tensor, "m k"]
) -> Float[Tensor, "n k"]:
    """``K_ab V``, a tile at a time; differentiable in a, where it asks for its gradient.

    Cost:
        ``n m`` entries, never held at once.
    """
    step = max(1, TILE // max(1, min(len(a), 1024)))
    found: list[Tensor] = []
    for rows in a.split(1024):
        total = rows.new_zeros(len(rows), block.shape[1])
        for part, values in zip(b.split(step), block.split(step), strict=True):
            total = total + kernel(rows, part) @ values
        found.append(total)
    return torch.cat(found)


def contracted(matrix: KernelMatrix, weight: Callable[[slice, slice], Float[Tensor, "a b"]]) -> Float[Tensor, " h"]:
    """The gradient of ``Σ_ij W_ij K_ij`` in the kernel's ``hyper`` for a symmetric W, tile by tile.

    Args:
        matrix: K.
        weight: The entries of W at some rows and columns.

    Cost:
        Half of the entries of K, and their derivatives; memory of a tile of them.
    """
    hyper = matrix.kernel.hyper
    slope = torch.zeros_like(hyper)
    for i, j in matrix.tiles():
        with torch.enable_grad():
            at = hyper.clone().requires_grad_()
            part = (matrix.tile(matrix.kernel.with_hyper(at), i, j) * weight(i, j)).sum() * (1 if i == j else 2)
            slope += torch.autograd.grad(part, at)[0]
    return slope
