"""Phantoms have the ranges, shapes and parts that are promised, and come from their generator."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from lapwing.ct.beams import Parallel2d
from lapwing.ct.phantoms import Ellipses, digits, rectangles, shepp_logan, walnut
from lapwing.ground.errors import ConfigError
from tests.checker import unchecked
from tests.posterior_cases import refused


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_an_ellipse_has_its_area_centre_and_density() -> None:
    geometry = Parallel2d((60, 80), [0.0], pixel_size=0.1)
    image = Ellipses(((0.5, 1.0, 0.6, 0.4, -0.5, 0.9),), scale=2.0).image(geometry)
    assert image.max() == 0.5
    mass = image.sum() * 0.1**2
    torch.testing.assert_close(float(mass), 0.5 * math.pi * 2.0 * 1.2, rtol=1e-2, atol=0)
    middle = (image.flatten() @ geometry.points) / image.sum()
    torch.testing.assert_close(middle, torch.tensor([0.8, -1.0]).double(), rtol=0, atol=0.02)


def test_the_phantom_of_shepp_and_logan_is_a_skull_of_1_with_0_around_and_0_2_inside() -> None:
    image = shepp_logan(128)
    assert image[0, 0] == 0 and image.min() == 0 and image.max() == 1
    torch.testing.assert_close(float(image[100, 40]), 0.2)
    torch.testing.assert_close(float(image[42, 64]), 0.3)  # the disc above the middle


def test_rectangles_add_up_to_at_most_1() -> None:
    one, again, other = (rectangles(32, generator=seeded(seed)) for seed in (0, 0, 1))
    assert one.shape == (32, 32) and one.min() >= 0 and one.max() == 1
    assert torch.equal(one, again) and not torch.equal(one, other)
    assert 2 <= len(one.unique()) <= 8  # sums of three densities
    with refused(ConfigError, "count of at least 1"):
        rectangles(32, 0)


@pytest.mark.parametrize("shape", [(64, 48), (20, 24, 28)])
def test_walnuts_have_a_closed_shell_around_a_kernel(shape: tuple[int, ...]) -> None:
    nut = walnut(shape, generator=seeded(3))
    assert nut.shape == shape and nut.min() >= 0 and nut.max() <= 1
    assert torch.equal(nut, walnut(shape, generator=seeded(3))) and not torch.equal(nut, walnut(shape))
    middle = nut[tuple(side // 2 for side in shape[:-1])]
    assert middle[0] < 0.05 and middle[-1] < 0.05  # air, then shell, from either side
    assert middle[: shape[-1] // 3].max() > 0.9 and middle[-shape[-1] // 3 :].max() > 0.9
    inside = nut[tuple(slice(side // 3, -side // 3) for side in shape)]
    assert 0.3 < inside.max() < 0.9 and inside.min() < 0.1


def test_digits_are_images_of_the_size_asked_for() -> None:
    pytest.importorskip("sklearn")
    found = digits(28, count=3, generator=seeded(0))
    assert found.shape == (3, 28, 28) and found.min() >= 0 and 0.8 < found.max() <= 1
    assert not torch.equal(found[0], found[1])


@pytest.mark.parametrize("phantom", [shepp_logan, rectangles, digits])
def test_the_size_of_a_phantom_is_one_number(phantom: Any) -> None:
    with refused(ConfigError, "at least 1. Got (32, 32)"), unchecked():
        phantom((32, 32))


def test_the_shape_of_a_walnut_is_several() -> None:
    with refused(ConfigError, "tuple, list. Got int 32"), unchecked():
        walnut(32)  # pyright: ignore[reportArgumentType]
