"""Filtered back-projection against scikit-image's, and against what was projected."""

from __future__ import annotations

import math

import pytest
import torch

from lapwing.ct.beams import FanBeam, Parallel2d, Parallel3d
from lapwing.ct.filtered import Window, _weights, filtered_back_projection
from lapwing.ct.geometry import Geometry, equidistant
from lapwing.ct.phantoms import Ellipses
from lapwing.ground.errors import ConfigError, DataError, NumericalError
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


def test_a_disc_near_a_fans_source_has_its_density() -> None:
    disc = Ellipses(((1.0, 1.0, 1.0, -1.9, 2.1, 0.0),))
    fan = FanBeam((64, 72), equidistant(360, 2 * math.pi), pixel_size=0.1, source=5.5, bin_size=0.05)
    image = filtered_back_projection(disc.sinogram(fan), fan, "hann").flatten()
    distance = (fan.points - torch.tensor([-1.9, 2.1]).double()).norm(dim=1)
    assert abs(float(image[distance < 0.7].mean()) - 1) < 0.01 and abs(float(image[distance > 1.5].mean())) < 0.01


def test_uneven_angles_count_by_the_gaps_around_them() -> None:
    """Every other angle of a part left out, some measured again, and a whole turn, which is the half turn twice."""
    ellipses, even = Ellipses(PARTS, scale=3.2), equidistant(120)
    uneven = torch.cat([even[:60:2], even[60:], even[80:90] + math.pi, even[80:85]])
    images = []
    for angles in (even, uneven, equidistant(240, 2 * math.pi)):
        geometry = Parallel2d((64, 72), angles, pixel_size=0.1)
        images.append(filtered_back_projection(ellipses.sinogram(geometry), geometry, "hann"))
    assert float((images[1] - images[0]).norm() / images[0].norm()) < 0.02
    torch.testing.assert_close(images[2], images[0])
    fan = FanBeam((64, 72), equidistant(240, 2 * math.pi), pixel_size=0.1, source=11.0, distance=6.0)
    fewer = fan.select([i for i in range(240) if i > 60 or i % 2 == 0])
    round_, parts = (filtered_back_projection(ellipses.sinogram(g), g, "hann") for g in (fan, fewer))
    assert float((parts - round_).norm() / round_.norm()) < 0.02


@pytest.mark.filterwarnings("ignore:angles look like degrees:lapwing.DataWarning")  # one and a half turns
def test_equidistant_angles_all_weigh_the_same() -> None:
    for n in (1, 2, 3, 7, 60, 999):
        for end in (math.pi, 2 * math.pi):
            assert set(_weights(Parallel2d((4, 4), 0.1 + equidistant(n, end)))) == {1.0}
        assert set(_weights(Parallel2d((4, 4), equidistant(3 * n, 3 * math.pi) - 1.0))) == {1.0}
        assert set(_weights(FanBeam((4, 4), 0.1 + equidistant(n, 2 * math.pi), source=9.0))) == {1.0}


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
    part = Parallel2d((8, 8), equidistant(30, 2.0))
    with refused(DataError, "angles of parallel beams over a half turn. Got none over 69° of it"):
        filtered_back_projection(torch.zeros(part.sinogram), part)
    half = FanBeam((8, 8), equidistant(30), source=20.0, distance=3.0)
    with refused(DataError, "angles of a fan beam over a whole turn. Got none over 186° of it"):
        filtered_back_projection(torch.zeros(half.sinogram), half)
    plane = Parallel2d((8, 7), equidistant(9))
    with refused(ConfigError, "window= to be one of 'ramp'"), unchecked():
        filtered_back_projection(torch.zeros(plane.sinogram), plane, "ram-lak")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("dtype", "factor"), [(torch.float16, 1.0), (torch.bfloat16, 1.0), (torch.float64, 1.7e308)])
def test_half_precision_and_large_numbers_are_those_of_float64(dtype: torch.dtype, factor: float) -> None:
    geometry = Parallel2d((6, 7), equidistant(9), detector=8)
    y = normal(*geometry.sinogram)
    y = (y / y.abs().max()).to(dtype)
    expected = filtered_back_projection(y.double(), geometry)
    found = filtered_back_projection(factor * y, geometry)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double() / factor, expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-3)


def test_an_image_that_does_not_fit_the_dtype_is_refused() -> None:
    geometry = Parallel2d((6, 6), equidistant(9), pixel_size=1e-3)
    with refused(NumericalError, "an image that fits torch.float16"):
        filtered_back_projection(torch.full(geometry.sinogram, 6e4).half(), geometry)
