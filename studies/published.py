"""Rows that hold a number of ours beside the one a source printed for the same quantity."""

from __future__ import annotations

from benchmarks.report import Row


def beside_published(quantity: str, ours: float | None, published: float, place: str) -> Row:
    """What a study shows of one printed number.

    Args:
        quantity: What was measured, with the condition under which it was.
        ours: Our number; ``None`` where it could not be measured.
        published: The printed one.
        place: Where it is printed: the work, and its table, figure or section.

    Example:
        >>> beside_published("NLL of the plain network", 0.25, 0.282, "Deng et al. 2022, table 1")["published"]
        0.282
    """
    return {"verdict": quantity, "ours": ours, "published": published, "place": place}


def to_three_places(row: Row, *names: str) -> Row:
    """A row of a page with some of its numbers to three digits behind the point.

    Example:
        >>> to_three_places({"method": "ELLA", "nll": 0.23}, "nll", "ece")
        {'method': 'ELLA', 'nll': '0.230'}
    """
    return row | {name: f"{row[name]:.3f}" for name in names if row.get(name) is not None}
