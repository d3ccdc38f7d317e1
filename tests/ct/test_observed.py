"""A projector after a network; its laws are with those of all linear models."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lapwing.ct.observed import Measurement, Observed, linear_image
from lapwing.ground.errors import ShapeError
from lapwing.linear.model import LinearModel, Matrix
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


def test_a_decoder_in_training_mode_is_left_as_it_was() -> None:
    """Its running averages are not moved, and it is not said to have changed."""
    network = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.Conv2d(2, 1, 1)).train()
    before = copy.deepcopy(network.state_dict())
    image = linear_image(network, torch.ones(1, 1, 3, 4))
    image.check()
    assert network.training
    for name, value in network.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
