"""Second moments of columns, and their eigenvalues and eigenvectors."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from lapwing.linalg.operators.eigenbasis import Eigenbasis, decompose_nonzero, decompose_root

LARGE = 3
"""Rows to an eigenpair from which finding some pairs takes less than a quarter of the time of finding all."""

DECOMPOSED = 9
"""Multiplications that all eigenpairs of m rows take, over m³."""


class Moment:
    """``sum x xᵀ``: the columns x themselves, as long as there are at most half as many as they have rows.

    Args:
        leading: The leading eigenpairs of a matrix, or ``None`` where all are to be found; ``None`` for all of any.
        rank: How many these are, of a matrix with ``LARGE`` times as many rows or more.
    """

    def __init__(self, leading: Callable[[Tensor], Eigenbasis | None] | None = None, rank: int | None = None) -> None:
        self._leading = leading
        self._rank = rank
        self._columns = list[Tensor]()
        self._total: Tensor | None = None
        self.cut = False

    def add(self, shape: tuple[int, ...], columns: Callable[[], Tensor], total: Callable[[], Tensor]) -> None:
        """Take in columns: themselves where they are few, to be multiplied when they have become many, or their sum.

        Args:
            shape: Of the columns, ``[n, p, i, t]``: n t columns of i entries for each of p groups.
            columns: Makes them.
            total: Adds them up, ``[p, i, i]``.
        """
        count = shape[0] * shape[3]
        groups, rows = shape[1:3]
        if groups > 1 or 2 * count > rows:
            self.add_total(total())
            return
        self._columns.append(columns().movedim(2, 0).flatten(1))
        if 2 * sum(x.shape[1] for x in self._columns) > rows:
            self._multiply()

    def add_total(self, total: Tensor) -> None:
        """Take in what columns add up to; the tensor is written to."""
        self._total = total if self._total is None else self._total.add_(total.view_as(self._total))

    @property
    def total(self) -> Tensor:
        """The sum, written down: what other processes have is added to it in place."""
        self._multiply()
        assert self._total is not None
        return self._total

    def take(self, known: Eigenbasis) -> None:
        """Take the decomposition that another process made in place of the sum."""
        self._total = None
        self.decomposed = known
        self.cut = known.error > 0

    def _multiply(self) -> None:
        if self._columns:
            x = torch.cat(self._columns, 1)
            self._columns = []
            self.add_total(x @ x.mT)

    @property
    def effort(self) -> int:
        """Multiplications that ``decomposed`` will take, about; 0 where the sum is diagonal, or this was done."""
        if self._total is None:
            rows = len(self._columns[0]) if self._columns else 0
            columns = sum(x.shape[1] for x in self._columns)
            return 3 * rows * columns**2 + DECOMPOSED * columns**3
        rows = self._total.shape[-1]
        if self._total.ndim == 1:
            return 0
        if self._rank is not None and rows >= LARGE * self._rank and self._total.numel() == rows**2:
            return 3 * rows**2 * self._rank
        return DECOMPOSED * rows * self._total.numel()

    @cached_property
    def decomposed(self) -> Tensor | Eigenbasis:
        """The sum by its eigenvalues and eigenvectors, which take its place; where it is diagonal, its entries."""
        if self._total is None:
            return decompose_root(torch.cat(self._columns, 1))
        self._multiply()
        total = self._total
        self._total = None
        if total.ndim == 1:
            return total
        rows = total.shape[-1]
        few = None
        if self._leading is not None and total.numel() == rows**2:
            few = self._leading(total.view(rows, rows))
        self.cut = few is not None
        return decompose_nonzero(total) if few is None else few
