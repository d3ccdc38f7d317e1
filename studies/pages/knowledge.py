"""Inputs from elsewhere: what a network knows, by network and by posterior."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from benchmarks.report import Row
from studies.pages.reports import grid, rows

KINDS = ("unseen", "noise")
BESIDE = {"plain": ("none", "plain entropy"), "neighbours": ("none", "nearest neighbours")}
"""Scores of the network alone that stand beside."""

POSTERIORS = ("KFAC", "last layer", "diagonal", "Nyström", "32 draws")
"""Posteriors in the order of the page."""


def tables() -> Iterator[str]:
    """In the order of the page."""
    yield by_network("KFAC")
    yield by_posterior()


def tested(posterior: str, score: str) -> list[Row]:
    """The rows of the networks that chose no rule, one a network."""
    found = rows("elsewhere", part="tests", posterior=posterior, score=score)
    return [row for row in found if "network" in row]


def auroc(value: float) -> str:
    """Of 0 to 1, without the zero before the point."""
    return f"{value:.3f}".removeprefix("0")


def gain(row: Row, kind: str) -> str:
    """By how much it is above the plain entropy, with DeLong's standard error where it is of one network."""
    more = signed(row[f"{kind}_gain"])
    return f"{more} ± {auroc(row[f'{kind}_gain_stderr'])}"


def signed(value: float) -> str:
    """A gain with its sign."""
    return f"{value:+.3f}".replace("0.", ".").replace("-", "−")


def by_network(posterior: str) -> str:
    """Each network that tests the rule, and the mean of all."""
    heads = {"network": "<"}
    lines = dict[str, list[str]]()
    means = ["mean"]
    for kind in KINDS:
        plain, beside = (tested(*called) for called in BESIDE.values())
        ours = tested(posterior, "epistemic")
        heads |= {f"{kind}: plain": ">", f"{kind}: neighbours": ">", f"{kind}: epistemic": ">", f"{kind}: gain": ">"}
        known = {row["network"] for row in ours}
        for score in (plain, beside, ours):
            kept = [row for row in score if row["network"] in known]
            for row in kept:
                lines.setdefault(row["network"], [row["network"]]).append(auroc(row[kind]))
            means.append(auroc(statistics.fmean(row[kind] for row in kept)))
        for row in ours:
            lines[row["network"]].append(gain(row, kind))
        means.append(signed(statistics.fmean(row[f"{kind}_gain"] for row in ours)))
    return grid(heads, [*lines.values(), means])


def by_posterior() -> str:
    """The mean gains of each posterior, and where it is worse than the plain network."""
    heads = {"posterior": "<", "networks": ">", "unseen": ">", "noise": ">"}
    heads |= {"worse by more than a standard error, unseen": ">", "the worst, unseen": "<"}
    lines = []
    for posterior in POSTERIORS:
        found = tested(posterior, "epistemic")
        if not found:
            continue
        means = [signed(statistics.fmean(row[f"{kind}_gain"] for row in found)) for kind in KINDS]
        worse = [row for row in found if row["unseen_gain"] < -row["unseen_gain_stderr"]]
        worst = min(found, key=lambda row: row["unseen_gain"])
        where = f"{gain(worst, 'unseen')}, {worst['network']}"
        lines.append([posterior, str(len(found)), *means, f"{len(worse)} of {len(found)}", where])
    return grid(heads, lines)
