"""A projector after a network; its laws are with those of all linear models."""

from __future__ import annotations

import pytest

from lapwing.ground.errors import ShapeError
from lapwing.linear.model import LinearModel, Matrix
from lapwing.methods.ct.observed import Measurement, Observed
from tests.linear_models import Rays, case
from tests.posterior_cases import normal, refused


def test_the_rays_are_a_measurement_and_what_it_makes_a_linear_model() -> None:
    given = case("rays gaussian").model
    assert isinstance(given, Observed) and isinstance(given, LinearModel) and isinstance(given.operator, Measurement)
    assert given.explicit and not case("projector gaussian").model.explicit  # type: ignore[attr-defined]


def test_chunks_are_the_rays_asked_for() -> None:
    image = Matrix(normal(1, 5, 4))
    model = Observed(image, Rays(normal(7, 5)), normal(7), examples=3)
    assert [chunk.examples for chunk in model.visit()] == [3, 3, 1]
    assert [chunk.examples for chunk in Observed(image, Rays(normal(7, 5)), normal(7)).visit()] == [7]


@pytest.mark.parametrize(("rows", "pixels", "fragment"), [(6, 5, "6 measurements"), (7, 4, "one image of 4 pixels")])
def test_what_does_not_fit_is_a_sentence(rows: int, pixels: int, fragment: str) -> None:
    with refused(ShapeError, fragment):
        Observed(Matrix(normal(1, 5, 4)), Rays(normal(rows, pixels)), normal(7))
