"""Studies that are methods × scores: one call of ``lw.compare`` a network, and its rows as a report has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

import lapwing as lw
from benchmarks.data import Pair
from benchmarks.report import Row
from lapwing import comparison
from lapwing.comparison import Comparison


def nothing_more(row: comparison.Row) -> Row:
    """No facts beside those of every row."""
    return {}


def compared(
    model: nn.Module,
    train: Pair,
    test: Pair,
    *,
    seed: int = 0,
    facts: Callable[[comparison.Row], Row] = nothing_more,
    **options: Any,
) -> list[Row]:
    """Every method on one network, a row each.

    Args:
        model: The network.
        train: What methods are fitted to.
        test: What they are scored on.
        seed: Of what methods draw.
        facts: More of a row that has numbers; one that was found in the file ``out=`` has no ``predictor``.
        **options: Of ``lw.compare``.
    """
    found = lw.compare(model, train, test, seeds=[seed], **options)
    return [row_of(found, row) | (facts(row) if row.runs else {}) for row in found.rows]


def row_of(found: Comparison, row: comparison.Row) -> Row:
    """A row of one run: its numbers, and each NLL less that of the reference with the standard error of a pair.

    Args:
        found: The comparison.
        row: One of its rows.
    """
    line: Row = {"method": row.method}
    if row.tuned_by:
        line["tuned_by"] = row.tuned_by
    if row.note:
        return line | {"failure": row.note}
    (numbers,) = row.runs
    line |= numbers
    for name in numbers:
        score, _, shift = name.partition(":")
        if score == "nll":
            line |= differences(found, row, name, f"difference:{shift}" if shift else "difference")
    return line


def differences(found: Comparison, row: comparison.Row, score: str, name: str) -> Row:
    """A score less that of the reference, which itself has 0, and its standard error; nothing where they do not pair.

    Args:
        found: The comparison.
        row: One of its rows.
        score: The score.
        name: Of the difference.
    """
    if (row.method, row.tuned_by) == found.reference:
        return {name: 0.0}
    difference = found.difference(row, score)
    return {} if difference is None else {name: difference.value, f"{name}_error": difference.stderr}
