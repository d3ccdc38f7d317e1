"""Where a search along the prior precisions looks next."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lapwing.tuning.held_out.trial import Curve, Trial

GRID = (8.0, 11.0, 14.0)


def least_of(loss: Callable[[float], float], looks: int) -> float:
    """The precision that so many looks beyond the grid find."""
    curve = Curve("qmc", trials=[Trial(place, loss(place), "qmc") for place in GRID])
    for _ in range(looks):
        place = curve.between
        if place is None:
            break
        curve.trials.append(Trial(place, loss(place), "qmc"))
    return min(curve.trials, key=lambda trial: trial.objective).log_factor


def kinked(place: float) -> float:
    """Steep below 10, as where a temperature would have to sharpen, and flat above."""
    return 0.2 + 0.03 * (10.0 - place) if place < 10.0 else 0.2 + 0.002 * (place - 10.0) ** 2


def test_of_a_parabola_the_vertex_is_next() -> None:
    assert least_of(lambda place: (place - 10.3) ** 2, 1) == pytest.approx(10.3, abs=1e-3)


def test_a_kink_is_found_from_both_sides() -> None:
    assert kinked(least_of(kinked, 5)) < kinked(10.0) + 5e-5


@pytest.mark.parametrize("slope", [1.0, -1.0])
def test_at_an_end_there_is_nothing_between(slope: float) -> None:
    assert Curve("qmc", trials=[Trial(place, slope * place, "qmc") for place in GRID]).between is None
