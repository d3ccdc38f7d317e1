"""Filtered back-projection against scikit-image's, and against what was projected."""

from __future__ import annotations

import math

import pytest
import torch

from lapwing.ground.errors import ConfigError, DataError
from lapwing.methods.ct.beams import FanBeam, Parallel2d, Parallel3d
from lapwing.methods.ct.filtered import Window, filtered_back_projection
from lapwing.methods.ct.geometry import Geometry, equidistant
from lapwing.methods.ct.phantoms import Ellipses
from tests.checker import unchecked
from tests.posterior_cases import normal, refused

PARTS = ((1.0, 0.6, 0.4, 0.1, -0.2, 0.5), (-0.5, 0.2, 0.2, 0.2, -0.1, 0.0))


@pytest.mark.parametrize(
    ("window", "tolerance"),
    [("ramp", 1e-9), ("shepp-logan", 1e-9), ("cosine", 1e-9), ("hamming", 0.02), ("hann", 0.02)],
)
def test_it_is_that_of_scikit_image(window: Window, tolerance: float) -> None:
    """To rounding; its Hamming and Hann windows are not periodic, by a sample."""
    transform = pytest.importorskip("skimage.transform")
    geometry = Parallel2d((49, 49), equidistant(30), detector=49)
    y = normal(30, 49)
    degrees = geometry.theta.rad2deg().numpy()
    theirs = torch.tensor(transform.iradon(y.mT.numpy(), degrees, filter_name=window, circle=False, output_size=49))
    found = filtered_back_projection(y, geometry, window)
    assert float((found - theirs).norm() / theirs.norm()) < tolerance


@pytest.mark.parametrize(
    "geometry",
    [
        Parallel2d((64, 72), equidistant(120), pixel_size=0.1),
        Parallel2d(
            (64, 72), equidistant(120, 2 * math.pi) + 0.3, pixel_size=0.1, bin_size=0.07, detector=150, offset=0.1
        ),
        FanBeam((64, 72), equidistant(240, 2 * math.pi), pixel_size=0.1, source=11.0, distance=6.0),
        FanBeam((64, 72), equidistant(240, 2 * math.pi), pixel_size=0.1, source=11.0),
    ],
    ids=["parallel", "turned", "fan", "fan to the axis"],
)
def test_it_finds_the_densities_that_were_projected(geometry: Geometry) -> None:
    ellipses = Ellipses(PARTS, scale=3.2)
    image, points = filtered_back_projection(ellipses.sinogram(geometry), geometry, "hann"), geometry.points
    for density, distance in ((0.0, 3.0), (1.0, 0.6), (0.5, 0.25)):
        centre = torch.tensor([(-1.0, -1.0), (-0.2, -0.25), (0.2, -0.1)][[0.0, 1.0, 0.5].index(density)]).double() * 3.2
        near = (points - centre).norm(dim=1) < distance
        if density == 0.0:
            near = points.norm(dim=1) > distance
        assert near.sum() > 10
        assert abs(float(image.flatten()[near].mean()) - density) < 0.02


def test_slices_are_filtered_each_by_itself() -> None:
    angles = equidistant(9)
    y = normal(9, 2, 12)
    stack = filtered_back_projection(y.flatten(), Parallel3d((8, 7), angles, detector=12, layers=2))
    plane = Parallel2d((8, 7), angles, detector=12)
    torch.testing.assert_close(stack, torch.stack([filtered_back_projection(y[:, i], plane) for i in range(2)]))


def test_lengths_in_another_unit_change_densities_inversely() -> None:
    y = normal(9, 12)
    metres, millimetres = (Parallel2d((8, 7), equidistant(9), detector=12, pixel_size=size) for size in (0.001, 1.0))
    found = [filtered_back_projection(y, geometry) for geometry in (metres, millimetres)]
    torch.testing.assert_close(found[0], 1000 * found[1])


def test_a_sinogram_of_whole_numbers_is_read_as_real() -> None:
    geometry = Parallel2d((6, 6), equidistant(8))
    y = torch.arange(8 * geometry.bins).view(geometry.sinogram)
    torch.testing.assert_close(filtered_back_projection(y, geometry), filtered_back_projection(y.float(), geometry))


def test_what_cannot_be_back_projected_is_refused() -> None:
    half = FanBeam((8, 8), equidistant(30), source=20.0, distance=3.0)
    with refused(DataError, "angles of a fan beam over a whole turn. Got none over 186° of it"):
        filtered_back_projection(torch.zeros(half.sinogram), half)
    plane = Parallel2d((8, 7), equidistant(9))
    with refused(ConfigError, "window= to be one of 'ramp'"), unchecked():
        filtered_back_projection(torch.zeros(plane.sinogram), plane, "ram-lak")  # pyright: ignore[reportArgumentType]
