"""What ``studies.continual`` remembers of earlier tasks, by what is remembered."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.report import Row
from studies.continual import PRECISION
from studies.pages.reports import fixed, grid, row

WORDS = {
    "trained on": "nothing: trained on",
    "mean alone": f"the last weights alone, as the mean of `Isotropic({PRECISION})`",
    "diagonal": "`Diagonal`",
    "KFAC": "`KFAC`",
    "EKFAC": "`EKFAC`",
    "diagonal, data count ten times": "`Diagonal`, its data counted ten times",
    "KFAC, data count ten times": "`KFAC`, its data counted ten times",
    "EKFAC, data count ten times": "`EKFAC`, its data counted ten times",
    "all tasks at once": "all tasks learned at once",
}
"""How the page calls each method of the study."""


def tables() -> Iterator[str]:
    """The one of the page."""
    lines = []
    for method, words in WORDS.items():
        found = row("continual", summary=True, method=method)
        lines.append([words, *(with_error(found, score) for score in ("first", "mean", "last"))])
    yield grid({"what is remembered": "<", "first task": ">", "all": ">", "last task": ">"}, lines)


def with_error(found: Row, score: str) -> str:
    """A mean over the seeds with its standard error."""
    return f"{fixed(found[score], 3)} ± {fixed(found[f'{score}_stderr'], 3)}"
