"""A few rows of a large table of choices, chosen so that every two choices meet."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from itertools import combinations, product
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
