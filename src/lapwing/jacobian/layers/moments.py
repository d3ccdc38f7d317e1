"""Second moments of one chunk, ``sum x xᵀ``: what KFAC adds up of the gradients and the inputs of a layer."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

from jaxtyping import Float
from torch import Tensor

from lapwing.ground.precision import DOUBLE, Precision
from lapwing.linalg.products import outer_sum

Sharing: TypeAlias = Literal["expand", "reduce"]
"""Whether KFAC takes each position that shares a weight for an example of its own, or adds them up first."""


class Moment(abc.ABC):
    """A second moment ``sum x xᵀ`` over the columns x of one chunk; nothing is computed until it is asked.

    The columns are in the dtype in which they are multiplied, their sum is in float64.

    Args:
        count: Columns it counts for: examples, times positions where each is an example of its own.
    """

    count: int

    @property
    @abc.abstractmethod
    def few(self) -> bool:
        """Whether the columns are at most half as many as their entries: then they are kept, not their sum."""

    @abc.abstractmethod
    def columns(self) -> Float[Tensor, "i m"]:
        """The columns themselves, where there are few."""

    @abc.abstractmethod
    def total(self) -> Float[Tensor, "..."]:
        """The sum: ``[p, i, i]`` for p groups, or ``[i]`` where it is diagonal; the caller may write to it."""


@final
@dataclass(frozen=True, eq=False)
class ColumnMoment(Moment):
    """The second moment of columns that are at hand.

    Args:
        x: The columns of p groups.
        count: See ``Moment``.
    """

    x: Float[Tensor, "n p i t"]
    count: int = 0

    @property
    def few(self) -> bool:
        """See ``Moment``."""
        n, p, i, t = self.x.shape
        return is_few(p, i, n * t)

    def columns(self) -> Float[Tensor, "i m"]:
        """See ``Moment``."""
        return self.x.movedim(2, 0).flatten(1)

    def total(self) -> Float[Tensor, "p i i"]:
        """See ``Moment``."""
        return sum_of_groups(self.x)


@final
@dataclass(frozen=True, eq=False)
class RowMoment(Moment):
    """The second moment ``sum J_nkᵀ J_nk`` of explicit rows.

    Args:
        rows: Of every example and cotangent.
        count: See ``Moment``.
        precision: In what their products are made.
    """

    rows: Float[Tensor, "m d"]
    count: int = 0
    precision: Precision = DOUBLE

    @property
    def few(self) -> bool:
        """See ``Moment``."""
        m, d = self.rows.shape
        return is_few(1, d, m)

    def columns(self) -> Float[Tensor, "d m"]:
        """See ``Moment``."""
        return self.precision.operand(self.rows).mT

    def total(self) -> Float[Tensor, "d d"]:
        """See ``Moment``."""
        return outer_sum(self.columns())


def is_few(groups: int, rows: int, columns: int) -> bool:
    """Whether a second moment of so many columns is held by them."""
    return groups == 1 and 2 * columns <= rows


def sum_of_groups(x: Float[Tensor, "n p i t"]) -> Float[Tensor, "p i i"]:
    """``sum_nt x xᵀ`` for each group: one product, or one an example where a copy in one piece would be larger."""
    if x.shape[2] < x.shape[3] and x.stride(0) > x.stride(2):
        return outer_sum(x).sum(0)
    return outer_sum(x.permute(1, 2, 0, 3).flatten(2))
