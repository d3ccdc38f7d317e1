"""What two commits are compared by runs on a few images, and says seconds."""

from __future__ import annotations

import pytest

from benchmarks import commits


@pytest.mark.parametrize(
    ("timed", "said"),
    [
        (lambda: commits.products("lenet", 4, 2), {"seconds"}),
        (lambda: commits.kfac("lenet", 4, "MCFisher"), {"fresh", "seconds", "g"}),
        (lambda: commits.predict("lenet", 4), {"seconds", "g"}),
        (lambda: commits.em(4, 1), {"seconds"}),
        (lambda: commits.diagonal("lenet", 4), {"seconds"}),
        (lambda: commits.last_layer(4), {"seconds"}),
        (lambda: commits.process(20), {"seconds"}),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_says_seconds(timed, said: set[str]) -> None:
    found = timed()
    assert found.keys() == said
    assert all(seconds > 0 for seconds in found.values())
