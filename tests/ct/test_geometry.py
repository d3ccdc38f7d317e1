"""Where rays run, in closed form, and what is no geometry."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.ct.beams import FanBeam, Parallel2d, Parallel3d
from lapwing.ct.geometry import Geometry, equidistant
from lapwing.ct.projector import Projector
from lapwing.ground.errors import ConfigError, DataError, DataWarning, ShapeError, TooLargeError
from tests.checker import unchecked
from tests.posterior_cases import normal, refused

ANGLES = (0.3, 1.7, 4.0)
GEOMETRIES = [
    Parallel2d((5, 8), ANGLES, detector=7, pixel_size=0.5, bin_size=0.7, offset=0.2),
    Parallel3d((5, 8), ANGLES, detector=7, pixel_size=0.5, bin_size=0.7, offset=0.2, layers=2),
    FanBeam((5, 8), ANGLES, detector=7, pixel_size=0.5, bin_size=1.1, offset=0.2, source=9.0, distance=4.0),
]
every_geometry = pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: type(g).__name__)


@every_geometry
def test_points_on_a_ray_are_seen_by_its_bin(geometry: Geometry) -> None:
    origin, direction = geometry.rays()
    torch.testing.assert_close(direction.norm(dim=-1), torch.ones(3, 7).double())
    for angle in range(3):
        steps = normal(7, seed=angle)
        if isinstance(geometry, FanBeam):
            steps = geometry.source + steps
        seen, _ = geometry.shadow(origin[angle] + steps[:, None] * direction[angle])
        torch.testing.assert_close(seen[angle], geometry.positions)


@every_geometry
def test_the_magnification_is_the_derivative_of_the_shadow_along_the_detector(geometry: Geometry) -> None:
    across = torch.stack([torch.tensor(ANGLES).double().cos(), torch.tensor(ANGLES).double().sin()], -1)
    points = normal(6, 2)
    for angle in range(3):
        moved, _ = geometry.shadow(points + 0.1 * across[angle])
        seen, magnified = geometry.shadow(points)
        torch.testing.assert_close((moved - seen)[angle], 0.1 * magnified[angle])
    _, axis = geometry.shadow(torch.zeros(1, 2).double())
    torch.testing.assert_close(axis, torch.full((3, 1), geometry.magnification).double())


@every_geometry
def test_without_a_detector_the_bins_see_every_corner_and_not_much_more(geometry: Geometry) -> None:
    whole = type(geometry)(**{**vars(geometry), "detector": None, "offset": 0.0, "angles": equidistant(60, 6.28)})
    seen, _ = whole.shadow(whole.points)
    half = float(whole.positions.max()) + whole.spacing / 2
    assert seen.abs().max() < half < 1.3 * seen.abs().max()


def test_a_fan_just_reaches_the_circle_around_the_image() -> None:
    """The tangent from the source, r s / √(s² − r²) on a detector through the axis: 5 · 13 / 12 where r, s = 5, 13."""
    fan = FanBeam((6, 8), [0.0], bin_size=0.01, source=13.0)
    assert 0 <= fan.bins * fan.spacing / 2 - 5 * 13 / 12 < 0.01


def test_the_first_pixel_is_left_above_and_the_parallel_ray_of_angle_zero_runs_upwards() -> None:
    geometry = Parallel2d((2, 3), [0.0, math.pi / 2], pixel_size=2.0, detector=3)
    assert geometry.points[0].tolist() == [-2.0, 1.0] and geometry.points[-1].tolist() == [2.0, -1.0]
    origin, direction = geometry.rays()
    torch.testing.assert_close(origin[0, 0], torch.tensor([-2.0, 0.0]).double())
    torch.testing.assert_close(direction[:, 0], torch.tensor([[0.0, 1.0], [-1.0, 0.0]]).double())


@every_geometry
def test_some_angles_are_those_rays(geometry: Geometry) -> None:
    for whole, some in zip(geometry.rays(), geometry.select([2, 0]).rays(), strict=True):
        torch.testing.assert_close(some, whole[[2, 0]], rtol=0, atol=0)


def test_a_mask_is_the_numbers_of_its_angles() -> None:
    for mask in (torch.tensor([True, False, True]), [True, False, True]):
        assert GEOMETRIES[0].select(mask).theta.tolist() == [0.3, 4.0]
    assert GEOMETRIES[0].select([-1]).theta.tolist() == [4.0]


@pytest.mark.parametrize(
    ("index", "came"),
    [
        ([0, 3], "Got [0, 3]"),
        ([-4], "Got [-4]"),
        ([], "Got []"),
        (torch.tensor([0.5]), "Got [0.5]"),
        ([True, False], "Got a mask of 2 with 1"),
        ([False, False, False], "Got a mask of 3 with 0"),
    ],
)
def test_angles_that_there_are_not_are_refused(index: list[int] | Tensor, came: str) -> None:
    with refused(ConfigError, f"or a mask of all 3. {came}"):
        GEOMETRIES[0].select(index)


def test_an_offset_moves_the_bins_along_the_detector() -> None:
    positions = Parallel2d((4, 4), [0.0], detector=3, bin_size=2.0, offset=0.5).positions
    assert positions.tolist() == [-1.5, 0.5, 2.5]


def test_equidistant_angles_leave_out_the_end() -> None:
    angles = equidistant(5, 2 * math.pi)
    torch.testing.assert_close(angles.diff(), torch.full((4,), 2 * math.pi / 5).double())
    assert lw.ct.equidistant(3)[0] == 0


def test_a_sinogram_is_flat_row_by_row() -> None:
    y = normal(3, 2, 7)
    torch.testing.assert_close(GEOMETRIES[1].check(y), y.flatten(), rtol=0, atol=0)


def test_what_is_no_geometry_is_refused() -> None:
    with refused(ConfigError, "look like degrees. Try torch.deg2rad(angles)"):
        Parallel2d((4, 4), torch.linspace(0, 180, 7).double())
    with refused(DataError, "finite angles"):
        Parallel2d((4, 4), [0.0, math.nan])
    with refused(ShapeError, "angles as a vector"):
        Parallel2d((4, 4), [])
    with refused(ConfigError, "a positive pixel_size"):
        Parallel2d((4, 4), [0.0], pixel_size=0.0)
    with refused(ConfigError, "a positive bin_size"):
        Parallel2d((4, 4), [0.0], bin_size=-1.0)
    with refused(ConfigError, "a source outside the image"):
        FanBeam((40, 40), [0.0], source=20.0, distance=10.0)
    with refused(ConfigError, "from axis to detector"):
        FanBeam((4, 4), [0.0], source=20.0, distance=-1.0)
    with refused(ConfigError, "a finite distance from axis"):
        FanBeam((4, 4), [0.0], source=20.0, distance=math.inf)
    with refused(ConfigError, "Got source=inf. Try Parallel2d"):
        FanBeam((4, 4), [0.0], source=math.inf)
    with refused(ConfigError, "a finite offset. Got nan"):
        Parallel2d((4, 4), [0.0], offset=math.nan)
    with refused(ConfigError, "finite in float32. Got inf"):
        Parallel2d((4, 4), [0.0], pixel_size=math.inf)
    with refused(ConfigError, "layers of at least 1"):
        Parallel3d((4, 4), [0.0], layers=0)
    with unchecked(), refused(ConfigError, "pixels as height and width"):
        Parallel2d(128, [0.0])  # pyright: ignore[reportArgumentType]


def test_what_is_no_sinogram_of_a_geometry_is_refused() -> None:
    geometry = GEOMETRIES[0]
    with refused(ShapeError, "Got [7, 3]. Try sinogram.T"):
        geometry.check(torch.zeros(7, 3))
    with refused(ShapeError, "Got [4, 7]. Try the angles"):
        geometry.check(torch.zeros(4, 7))
    broken = torch.zeros(3, 7)
    broken[1, 4:] = math.nan
    with refused(DataError, "the first at angle 1, bin 4"):
        geometry.check(broken)
    with refused(DataError, "angle 2, slice 1, bin 6"):
        GEOMETRIES[1].check(torch.cat([torch.zeros(41), torch.tensor([math.inf])]))


def test_an_end_of_angles_that_is_no_number_is_refused() -> None:
    with refused(ConfigError, "a finite end. Got nan"):
        equidistant(3, math.nan)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"pixel_size": 1e-300}, "a pixel_size from 1e-18 to 1e+18"),
        ({"bin_size": 1e-300}, "a bin_size from 1e-18 to 1e+18"),
    ],
)
def test_lengths_that_no_float32_holds_are_refused(options: dict[str, float], sentence: str) -> None:
    with refused(ConfigError, sentence):
        Parallel2d((4, 4), ANGLES, **options)


def test_more_rays_or_pixels_than_memory_holds_are_refused() -> None:
    with refused(TooLargeError, "rays of at most"):
        Parallel2d((4, 4), ANGLES, detector=10**9)
    with refused(TooLargeError, "an image of at most"):
        Parallel2d((10**6, 10**6), ANGLES, detector=4)
    with refused(TooLargeError, "a projector of at most"):
        _ = Projector(Parallel2d((2**13, 2**13), ANGLES, detector=2**16)).matrix


@pytest.mark.parametrize("angles", [[0.9 * k for k in range(10)], range(6)], ids=["over a turn", "whole numbers"])
def test_angles_that_look_like_degrees_are_warned_of(angles: Sequence[float]) -> None:
    with pytest.warns(DataWarning, match=r"look like degrees.*Try torch\.deg2rad"):
        Parallel2d((4, 4), angles)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for radians in (equidistant(8, 2 * math.pi), torch.linspace(-math.pi, math.pi, 5), torch.arange(4.0)):
            Parallel2d((4, 4), radians)
