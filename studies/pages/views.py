"""What ``studies.mirror_images`` found, one view beside both."""

from __future__ import annotations

from collections.abc import Iterator

from studies.mirror_images import ONE_VIEW
from studies.pages.reports import difference, fixed, grid, row, rows

WORDS = {
    "plain network": "the network alone",
    "temperature scaling": "a temperature, by 300 images",
    "diagonal": "`Diagonal`, tuned by 300 images",
    "diagonal, no validation data": "`Diagonal`, tuned by default",
}
"""How the page calls each method of the study."""


def tables() -> Iterator[str]:
    """The one of the page."""
    heads = {"network": "<", "method": "<", "one view": ">", "both": ">", "both, less a temperature on both": ">"}
    lines = []
    for network in dict.fromkeys(each["network"] for each in rows("mirror-images")):
        for method, words in WORDS.items():
            one = row("mirror-images", network=network, method=method + ONE_VIEW)
            both = row("mirror-images", network=network, method=method)
            gain = difference(both["difference"], both["difference_error"]) if both["difference"] else "0"
            lines.append([network, words, fixed(one["nll"], 3), fixed(both["nll"], 3), gain])
    yield grid(heads, lines)
