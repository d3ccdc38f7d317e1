"""Which of the precisions and links tried is taken."""

from __future__ import annotations

import math

from lapwing.tuning.search import Tried, least


def test_of_losses_that_rounding_alone_tells_apart_the_first_is_taken() -> None:
    first, second, third = Tried(2.0, 0.5, "probit"), Tried(1.0, 0.5 - 1e-8, "qmc"), Tried(0.0, 0.6, "qmc")
    assert least([third, first, second]) is first and least([second, first]) is second
    better = Tried(0.0, 0.499, "pairwise")
    assert least([first, second, better, third]) is better
    assert least([Tried(0.0, math.inf, "qmc"), third]) is third
    negative = Tried(1.0, -2.0, "probit"), Tried(0.0, -2.0 - 1e-8, "probit"), Tried(0.0, -2.1, "probit")
    assert least(negative[:2]) is negative[0] and least(negative) is negative[2]
