"""A few rows of a large table of choices, chosen so that every two choices meet, or every choice some other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from itertools import combinations, cycle, product
from typing import Any


def pairwise(*axes: Iterable[Hashable], where: Callable[..., bool] = lambda *row: True) -> list[tuple[Any, ...]]:
    """Rows of the product of the axes in which every pair of values of two axes occurs that occurs at all.

    Greedy: the next row is the one with the most pairs that are still missing.

    Args:
        axes: Values of each choice.
        where: Which rows may be taken.
    """
    rows = [row for row in product(*axes) if where(*row)]
    pairs = {row: {(i, row[i], j, row[j]) for i, j in combinations(range(len(row)), 2)} for row in rows}
    missing, chosen = set[tuple[Any, ...]]().union(*pairs.values()), list[tuple[Any, ...]]()
    while missing:
        best = max(rows, key=lambda row: len(pairs[row] & missing))
        chosen.append(best)
        missing -= pairs[best]
    return chosen


def in_turn(
    many: Iterable[Hashable], few: Collection[Hashable], whole: Iterable[Hashable] = ()
) -> list[tuple[Any, Any]]:
    """Every one of many with one of few, in turn; each of ``whole`` with all of them.

    For what differs little from one pair to the next: a fault in one of many shows with any of few.

    Args:
        many: Values of the long axis.
        few: Values of the short one.
        whole: Those of the long axis that meet all of the short one.
    """
    pairs = dict.fromkeys(zip(many, cycle(few), strict=False))
    return list(pairs | dict.fromkeys(product(whole, few)))
