"""What ``studies.side_by_side`` said of each network: one table, of those that have a report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from studies.pages.reports import NOTHING, RESULTS, difference, fixed, grid

NETWORKS = {"digits": "digits, five seeds", "ella_resnet20": "ella_resnet20"}
"""Folders of ``benchmarks/results/side-by-side``, and how the page calls them."""

SCORES = {
    "NLL": "nll",
    "fog": "nll:fog 5",
    "noise": "nll:gaussian noise 5",
    "accuracy": "accuracy",
    "OOD AUROC": "ood_auroc",
    "joint": "joint",
}
"""Columns of the page, and of the report."""


def tables() -> Iterator[str]:
    """In the order of the page."""
    for folder, called in NETWORKS.items():
        path = RESULTS / "side-by-side" / folder / "results.json"
        if path.exists():
            yield compared(json.loads(path.read_text(encoding="utf-8")), called)


def compared(report: Mapping[str, Any], called: str) -> str:
    """Every method with its scores, best first, and those that were stopped last."""
    heads = {called: "<", "tuned by": "<", "NLL less the reference": ">"} | dict.fromkeys(SCORES, ">")
    lines = []
    for row in report["rows"]:
        scores = [fixed(None if row[name] is None else row[name]["mean"], 3) for name in SCORES.values()]
        lines.append([row["method"], row["tuned_by"] or NOTHING, from_reference(row), *scores])
    return grid(heads, lines)


def from_reference(row: Mapping[str, Any]) -> str:
    """The paired difference of the NLL, with its standard error."""
    if row["nll"] is None or "difference" not in row["nll"]:
        return NOTHING
    found = row["nll"]["difference"]
    return difference(found["value"], found["stderr"], 3)
