"""Which of the precisions and links tried is taken, and where to look next."""

from __future__ import annotations

import math

import pytest

from lapwing.tuning.held_out.search import Trial, least
from lapwing.tuning.parabola import vertex


def test_of_losses_that_rounding_alone_tells_apart_the_first_is_taken() -> None:
    first, second, third = Trial(2.0, 0.5, "probit"), Trial(1.0, 0.5 - 1e-8, "qmc"), Trial(0.0, 0.6, "qmc")
    assert least([third, first, second]) is first and least([second, first]) is second
    better = Trial(0.0, 0.499, "pairwise")
    assert least([first, second, better, third]) is better
    assert least([Trial(0.0, math.inf, "qmc"), third]) is third
    negative = Trial(1.0, -2.0, "probit"), Trial(0.0, -2.0 - 1e-8, "probit"), Trial(0.0, -2.1, "probit")
    assert least(negative[:2]) is negative[0] and least(negative) is negative[2]


@pytest.mark.parametrize("top", [-1.3, 0.0, 2.4])
def test_the_vertex_of_a_parabola_is_found_from_any_three_points(top: float) -> None:
    points = [(x, 3.0 + 0.7 * (x - top) ** 2) for x in (4.0, -3.0, top + 0.2, -6.0)]
    assert vertex(points) == (pytest.approx(top, abs=1e-12), pytest.approx(3.0))
    assert vertex([(x, -y) for x, y in points]) is None
    assert vertex(points[:2]) is None


def test_beside_values_that_are_not_finite_the_vertex_is_halfway() -> None:
    assert vertex([(0.0, math.inf), (1.0, 5.0), (3.0, 7.0)]) == (2.0, 5.0)
    assert vertex([(0.0, 6.0), (1.0, 5.0), (3.0, math.inf)]) == (0.5, 5.0)
    assert vertex([(0.0, math.inf), (1.0, 5.0), (3.0, math.inf)]) == (2.0, 5.0)
