"""Matrix products whose sums over the data go on in float64."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.precision import WIDE, wide, wide_like, without_tf32

TILE = 512
"""Rows of a symmetric product made at a time: as many as keep a processor at its peak."""


def product(left: Float[Tensor, "*p m n"], right: Float[Tensor, "*p n k"]) -> Float[Tensor, "*p m k"]:
    """``left @ right``, multiplied in their own dtype with all of its digits, and given in float64.

    Args:
        left: Operands of ``Precision.operand``.
        right: The other.

    Example:
        >>> import torch
        >>> product(torch.ones(1, 2), torch.ones(2, 1))
        tensor([[2.]], dtype=torch.float64)
    """
    if left.dtype == WIDE:
        return left @ right
    with without_tf32():
        return wide(left @ right)


def outer_sum(x: Float[Tensor, "*p m n"], tile: int = TILE) -> Float[Tensor, "*p m m"]:
    """``Σ x xᵀ`` over the columns x; see ``product``.

    Args:
        x: The columns.
        tile: Rows of the result made at a time, up to its diagonal: what is above it is their transpose.
    """
    rows = x.shape[-2]
    if rows <= tile:
        return product(x, x.mT)
    total = torch.empty(*x.shape[:-2], rows, rows, **wide_like(x))
    for start in range(0, rows, tile):
        stop = min(start + tile, rows)
        part = product(x[..., start:stop, :], x[..., :stop, :].mT)
        total[..., start:stop, :stop] = part
        total[..., :start, start:stop] = part[..., :start].mT
    return total


def add_outer(total: Float[Tensor, "m m"], x: Float[Tensor, "m n"], tile: int = TILE) -> None:
    """Adds ``Σ x xᵀ`` to a matrix of float64, in its place, up to its diagonal alone; see ``mirror``.

    Args:
        total: What it is added to; what stands above its diagonal means nothing afterwards.
        x: The columns.
        tile: Rows of the result made at a time.
    """
    for start in range(0, len(total), tile):
        stop = min(start + tile, len(total))
        add_product(total[start:stop, :stop], x[start:stop], x[:stop].mT)


def mirror(total: Float[Tensor, "m m"], tile: int = TILE) -> None:
    """Writes what stands below the diagonal of a matrix above it too.

    Args:
        total: The matrix, which is written to.
        tile: Rows copied at a time.

    Example:
        >>> import torch
        >>> total = torch.tensor([[1.0, 9.0], [2.0, 3.0]])
        >>> mirror(total)
        >>> total.tolist()
        [[1.0, 2.0], [2.0, 3.0]]
    """
    for start in range(0, len(total), tile):
        stop = min(start + tile, len(total))
        total[:start, start:stop] = total[start:stop, :start].mT
        own = total[start:stop, start:stop]
        own.copy_(own.tril() + own.tril(-1).mT)


def add_product(total: Float[Tensor, "m k"], left: Float[Tensor, "m n"], right: Float[Tensor, "n k"]) -> None:
    """Adds ``left @ right`` to a matrix of float64, in its place; see ``product``."""
    if left.dtype == WIDE:
        total.addmm_(left, right)
    else:
        total += product(left, right)
