"""What fits cost here and in laplace-torch, for those who come from there."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.report import Row
from studies.pages.readme import unfinished
from studies.pages.reports import grid, row, significant

FITS = {
    "KFAC of all weights of a ResNet-18, 11 million, 500 images": ("resnet18", "kfac", "kfac"),
    "diagonal, the same": ("resnet18", "diagonal", "diagonal"),
    "KFAC of a last layer of 1,000 classes, 2,000 images": ("images c=1000", "kfac", "kron"),
}
"""Network, and what the structure is called here and there, by line."""


def tables() -> Iterator[str]:
    """In the order of the page."""
    lines = []
    for called, (network, here, there) in FITS.items():
        ours = row("wide", network=network, side="ours", structure=here, step="fit")
        theirs = row("wide", network=network, side="laplace-torch", structure=there, step="fit")
        lines.append([called, seconds(ours), seconds(theirs)])
    yield grid({"a fit": "<", "lapwing, s": ">", "laplace-torch, s": ">"}, lines)


def seconds(found: Row) -> str:
    """Of a fit, or why there are none."""
    return unfinished(found) if found["seconds"] is None else significant(found["seconds"])
