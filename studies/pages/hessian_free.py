"""Hessian-free Laplace: variances, their cost, and the intervals of weights."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.report import Row
from studies.pages.reports import NOTHING, fixed, grid, mean_of, rows, significant

COST = ("error", "worst")
INTERVALS = ("median", "ratio", "correlation", "covers_zero")
SCORES = ("nll", "crps", "picp", "variance_error")


def tables() -> Iterator[str]:
    """In the order of the page."""
    yield scores("in")
    yield scores("out")
    yield cost()
    yield intervals()


def scores(shift: str) -> str:
    """Every method on the four data sets, in distribution or out of it.

    Args:
        shift: ``"in"`` or ``"out"``.
    """
    heads = {"data": "<", "method": "<", "NLL": ">", "CRPS": ">", "PICP": ">", "error of the variance": ">"}
    found = rows("hessian-free-table", summary=True, shift=shift)
    lines = [[each["data"], each["method"], *(mean_of(each, name) for name in SCORES)] for each in found]
    return grid(heads, lines)


def cost() -> str:
    """Errors of the variance against fits."""
    heads = {"fits": "<"} | dict.fromkeys(("median error", "largest error", "fits made", "share"), ">")
    heads |= {"processor s": ">", "share of the seconds": ">"}
    return grid(heads, [cost_line(each) for each in rows("hessian-free-cost", summary=True)])


def cost_line(found: Row) -> list[str]:
    """One way to fit."""
    errors = [mean_of(found, name) for name in COST]
    shares = [share(found["share"]), significant(found["cpu_seconds"]), share(found["share_of_seconds"])]
    return [found["method"], *errors, fixed(found["fits"], 0), *shares]


def share(value: float) -> str:
    """A part of the per-point fits."""
    return "1" if value == 1 else significant(value)


def intervals() -> str:
    """Standard deviations of weights."""
    heads = {"data": "<", "method": "<", "median deviation": ">", "over the full Hessian's": ">"}
    heads |= {"correlation of logs": ">", "intervals over 0": ">"}
    lines = []
    for each in rows("hessian-free-intervals", summary=True):
        numbers = [mean_of(each, name) for name in INTERVALS]
        if each["method"] == "full Hessian":
            numbers[1:3] = ["1", NOTHING]
        lines.append([each["data"], each["method"], *numbers])
    return grid(heads, lines)
