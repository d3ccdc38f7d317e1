"""Sums of second moments, ``sum x xᵀ``, and their decompositions, dealt among processes where there are several."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, final

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.distributed import all_of, all_or_none, handed, shares
from lapwing.ground.progress import Bar
from lapwing.jacobian.layers.moments import Moment
from lapwing.linalg import FunctionOperator, nystrom
from lapwing.linalg.operators.eigenbasis import Eigenbasis, decompose_nonzero, decompose_root
from lapwing.linalg.products import add_outer, mirror, outer_sum

LARGE = 3
"""Rows to an eigenpair from which finding some pairs takes about half of the time of finding all, or less."""

TOGETHER = 256
"""Columns from which multiplying them keeps a processor at its peak."""

DECOMPOSED = 9
"""Multiplications that all eigenpairs of m rows take, over m³."""

TURNED = 8
"""Those in whose time the triangle of r columns of m rows is found and they are turned, over m r²: as measured."""

FOUND = 36
"""Those in whose time the r leading pairs of m rows are found, beside two products, over m r²: as measured.

These are factorisations of tall blocks, whose rate is a fifth of that of an eigendecomposition.
"""


@final
class Share(NamedTuple):
    """What some cotangents of some examples are of everything that a sweep adds up.

    Args:
        examples: Of all examples, those of the chunk.
        cotangents: Of the cotangents of all examples, these.
    """

    examples: float
    cotangents: float


@final
class MomentSum:
    """``sum x xᵀ``: the columns x themselves, where there are at most half as many as they have rows.

    Where it is known that there will be more, a few are multiplied at a time: put off until they are too many, what
    they take would be missing from the seconds by which the rest of the sweep is told.

    Args:
        rank: Eigenpairs kept of a matrix with ``LARGE`` times as many rows or more; ``None`` keeps all of all.
        epsilon: Relative rounding of the products that are added up; ``None`` for that of float64.
        together: Columns that are multiplied at a time, at least, where it is known that there will be many.
    """

    def __init__(self, rank: int | None = None, epsilon: float | None = None, together: int = TOGETHER) -> None:
        self._rank = rank
        self._epsilon = epsilon
        self._together = together
        self._columns: list[Tensor] = []
        self.cut = False
        """Whether it was decomposed into its leading eigenpairs alone."""
        self._total: Tensor | None = None
        self._triangular = False
        """Whether what stands above the diagonal of the total is missing."""

    def add(self, moment: Moment, share: float | None = None) -> None:
        """Take in columns: themselves where they are few, to be multiplied when they have become many, or their sum.

        Args:
            moment: The columns.
            share: Of all that will come, these with all; ``None`` where that is not known.
        """
        if not moment.few:
            self.add_total(moment.total())
            return
        columns = moment.columns()
        self._columns.append(columns)
        most = len(columns) // 2
        if share is not None and columns.shape[1] > share * most:
            most = min(most, self._together - 1)
        if sum(x.shape[1] for x in self._columns) > most:
            self._multiply()

    def add_total(self, total: Tensor) -> None:
        """Take in what columns add up to; the tensor is written to."""
        self._total = total if self._total is None else self._total.add_(total.view_as(self._total))

    @property
    def total(self) -> Tensor:
        """The sum, written down: what other processes have is added to it in place."""
        self._multiply()
        assert self._total is not None
        if self._triangular:
            mirror(self._total.view(self._total.shape[-2:]))
            self._triangular = False
        return self._total

    def take(self, known: Eigenbasis) -> None:
        """Take the decomposition that another process made in place of the sum."""
        self._total = None
        self.decomposed = known
        self.cut = known.error > 0

    def _multiply(self) -> None:
        if not self._columns:
            return
        x = torch.cat(self._columns, 1)
        self._columns = []
        if self._total is None:
            self._total = outer_sum(x)
        else:
            add_outer(self._total.view(len(x), len(x)), x)
            self._triangular = True

    @property
    def effort(self) -> int:
        """Multiplications that ``decomposed`` will take, about; 0 where the sum is diagonal, or this was done.

        Counted at the rate of an eigendecomposition: slower ones count as many times as they take longer.
        """
        if self._total is None:
            rows = len(self._columns[0]) if self._columns else 0
            columns = sum(x.shape[1] for x in self._columns)
            return TURNED * rows * columns**2 + DECOMPOSED * columns**3
        rows = self._total.shape[-1]
        if self._total.ndim == 1:
            return 0
        if self._rank is not None and rows >= LARGE * self._rank and self._total.numel() == rows**2:
            products = 2 * rows**2 * self._rank
            return products + FOUND * rows * self._rank**2 + DECOMPOSED * self._rank**3
        return DECOMPOSED * rows * self._total.numel()

    @cached_property
    def decomposed(self) -> Tensor | Eigenbasis:
        """The sum by its eigenvalues and eigenvectors, which take its place; where it is diagonal, its entries."""
        if self._total is None:
            return decompose_root(torch.cat(self._columns, 1))
        total = self.total
        self._total = None
        rows = total.shape[-1]
        if total.ndim == 1:
            return total
        few = leading(total.view(rows, rows), self._rank) if total.numel() == rows**2 else None
        self.cut = few is not None
        return decompose_nonzero(total, self._epsilon) if few is None else few


def leading(matrix: Float[Tensor, "m m"], rank: int | None) -> Eigenbasis | None:
    """So many eigenpairs of a second moment, what they leave of its trace spread evenly; of a small one none."""
    if rank is None or len(matrix) < LARGE * rank:
        return None
    held = FunctionOperator(matrix.matmul, matrix.matmul, (len(matrix), len(matrix)), matrix)
    factor = nystrom(held, rank, power=1, generator=torch.Generator().manual_seed(0))
    return decompose_root(factor, float(matrix.trace()))


def decompose_all(moments: Sequence[MomentSum]) -> list[Tensor | Eigenbasis]:
    """Sums by their eigenvalues and eigenvectors, each of which is kept; what takes long has a bar.

    Args:
        moments: The sums.
    """
    with Bar("eigendecompositions", sum(moment.effort for moment in moments), unit="multiplications") as bar:
        found: list[Tensor | Eigenbasis] = []
        for moment in moments:
            effort = moment.effort
            found.append(moment.decomposed)
            bar.update(effort)
    return found


def decompose_dealt(moments: Sequence[MomentSum]) -> None:
    """Decompose sums that all processes have, each some of them, and hand the results round.

    Args:
        moments: The sums.

    Raises:
        NumericalError: If one is not finite, in all of them.

    Cost:
        The time of the decompositions over the number of processes; a broadcast of each, with all pairs m² numbers.
    """
    like = moments[0].total
    owners = shares([moment.effort for moment in moments])
    own = [i for i, owner in enumerate(owners) if owner == dist.get_rank()]
    found: dict[int, Any] = all_or_none(lambda: dict(zip(own, decompose_all([moments[i] for i in own]), strict=True)))
    known = all_of({i: (it.values.shape, it.vectors.shape, it.rest, it.error) for i, it in found.items()})
    for i, (moment, owner) in enumerate(zip(moments, owners, strict=True)):
        *shapes, rest, error = known[owner][i]
        there = [found[i].values, found[i].vectors] if i in found else map(like.new_empty, shapes)
        values, vectors = (handed(part.contiguous(), owner) for part in there)
        moment.take(Eigenbasis(values, vectors, rest, error))
