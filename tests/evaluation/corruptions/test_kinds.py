"""Each kind of change does what it says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import fft, ndimage
from torch import Tensor

from lapwing.evaluation.corruptions.kinds import (
    LUMINANCE,
    brightness,
    contrast,
    defocus_blur,
    elastic,
    filtered,
    fog,
    gaussian_blur,
    gaussian_noise,
    impulse_noise,
    jpeg,
    motion_blur,
    occlusion,
    pixelate,
    resample,
    rotation,
    shot_noise,
)

GREY = torch.full((40, 3, 17, 19), 0.4, dtype=torch.float64)


def test_gaussian_noise_has_its_size(generator: torch.Generator) -> None:
    noise = gaussian_noise(GREY, 0.3, generator) - GREY
    assert float(noise.mean()) == pytest.approx(0, abs=0.006)
    assert float(noise.std()) == pytest.approx(0.3, rel=0.02)


def test_shot_noise_counts_photons(generator: torch.Generator) -> None:
    noisy = shot_noise(GREY, 25.0, generator)
    assert float(noisy.mean()) == pytest.approx(0.4, rel=0.01)
    assert float(noisy.var()) == pytest.approx(0.4 / 25, rel=0.04)
    torch.testing.assert_close(noisy * 25, (noisy * 25).round(), rtol=0, atol=1e-9)
    assert float(shot_noise(0 * GREY, 25.0, generator).max()) == 0


def test_impulses_replace_their_share(generator: torch.Generator) -> None:
    noisy = impulse_noise(GREY, 0.1, generator)
    assert float((noisy == 0).double().mean()) == pytest.approx(0.05, rel=0.08)
    assert float((noisy == 1).double().mean()) == pytest.approx(0.05, rel=0.08)
    assert bool(((noisy == 0) | (noisy == 1) | (noisy == 0.4)).all())


@pytest.fixture
def squares(generator: torch.Generator) -> Tensor:
    return torch.rand(12, 2, 15, 15, generator=generator, dtype=torch.float64)


def test_pixels_are_taken_from_where_the_shift_says(generator: torch.Generator) -> None:
    squares = torch.rand(2, 3, 8, 11, generator=generator, dtype=torch.float64)
    whole = torch.tensor([2.0, 3.0], dtype=squares.dtype).expand(2, 1, 1, 2)
    torch.testing.assert_close(resample(squares, whole)[..., :6, :8], squares[..., 2:, 3:], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        resample(squares, whole)[..., 6:, 0], squares[..., -1:, 3].expand(2, 3, 2), rtol=1e-12, atol=1e-12
    )
    field = 3 * torch.randn(2, 8, 11, 2, generator=generator, dtype=squares.dtype)
    found = resample(squares, field)
    places = np.indices((8, 11)) + field[1].movedim(-1, 0).numpy()
    expected = ndimage.map_coordinates(squares[1, 2].numpy(), places, order=1, mode="nearest")
    np.testing.assert_allclose(found[1, 2].numpy(), expected, rtol=1e-10, atol=1e-12)


def test_a_quarter_turn_is_a_quarter_turn_to_either_side(squares: Tensor, generator: torch.Generator) -> None:
    turned = rotation(squares, 90.0, generator)
    sides = [(turned - torch.rot90(squares, k, (2, 3))).flatten(1).abs().amax(1) < 1e-12 for k in (1, 3)]
    assert bool((sides[0] ^ sides[1]).all())
    assert bool(sides[0].any()) and bool(sides[1].any())


def test_elastic_moves_by_its_amount(generator: torch.Generator) -> None:
    rows = torch.arange(64, dtype=torch.float64)[:, None].expand(64, 64) / 64
    ramp = rows.expand(30, 1, 64, 64)
    moved = (elastic(ramp, 1.5, generator) - ramp)[..., 8:-8, 8:-8] * 64
    assert float(moved.square().mean().sqrt()) == pytest.approx(1.5, rel=0.1)
    assert float(moved.diff(dim=-1).abs().mean()) < 0.25  # smoothly
    assert float(moved.flatten(1).std(1).min()) > 0.5  # not as a whole


@pytest.fixture
def photos(generator: torch.Generator) -> Tensor:
    return torch.rand(5, 3, 20, 24, generator=generator, dtype=torch.float64)


def test_brightness_adds_and_contrast_keeps_the_mean(photos: Tensor) -> None:
    torch.testing.assert_close(brightness(photos, 0.2) - photos, torch.full_like(photos, 0.2))
    flat = contrast(photos, 0.3)
    torch.testing.assert_close(flat.mean((1, 2, 3)), photos.mean((1, 2, 3)))
    torch.testing.assert_close(flat.flatten(1).std(1), 0.3 * photos.flatten(1).std(1))


def test_fog_is_one_haze_over_all_channels(photos: Tensor, generator: torch.Generator) -> None:
    haze = (fog(photos, 0.25, generator) - 0.75 * photos) / 0.25
    torch.testing.assert_close(haze[:, 0], haze[:, 2])
    torch.testing.assert_close(haze.amin((1, 2, 3)), torch.full([5], 0.5, dtype=photos.dtype))
    torch.testing.assert_close(haze.amax((1, 2, 3)), torch.ones(5, dtype=photos.dtype))
    assert float((haze[0] - haze[1]).abs().mean()) > 0.02


def test_a_square_is_hidden_anywhere_in_the_image(generator: torch.Generator) -> None:
    photos = torch.zeros(400, 2, 10, 14)
    hidden = occlusion(photos, 0.4, generator) == 0.5
    assert bool((hidden.sum((2, 3)) == 16).all())
    for axis, side in ((3, 10), (2, 14)):
        lines = hidden[:, 0].any(axis - 1)
        starts = lines.double().argmax(-1)
        assert bool((lines.sum(-1) == 4).all())
        assert sorted(starts.unique().tolist()) == list(range(side - 3))


@pytest.fixture
def scenes(generator: torch.Generator) -> Tensor:
    return torch.rand(3, 2, 13, 17, generator=generator, dtype=torch.float64)


def test_gaussian_blur_equals_that_of_scipy(scenes: Tensor) -> None:
    for std in (0.4, 1.0, 1.7):
        expected = ndimage.gaussian_filter(
            scenes.numpy(), (0, 0, std, std), mode="nearest", radius=int(np.ceil(3 * std))
        )
        np.testing.assert_allclose(gaussian_blur(scenes, std).numpy(), expected, rtol=1e-12)


def test_filters_equal_those_of_scipy(scenes: Tensor, generator: torch.Generator) -> None:
    kernel = torch.rand(3, 5, generator=generator, dtype=torch.float64)
    expected = ndimage.correlate(scenes.numpy(), kernel.numpy()[None, None], mode="nearest")
    np.testing.assert_allclose(filtered(scenes, kernel).numpy(), expected, rtol=1e-12)


def spot(side: int = 33) -> Tensor:
    scenes = torch.zeros(50, 1, side, side, dtype=torch.float64)
    scenes[:, :, side // 2, side // 2] = 1
    return scenes


def moments(scenes: Tensor) -> tuple[Tensor, Tensor]:
    """Covariance of the places of the light, and how much there is."""
    at = torch.arange(scenes.shape[-1], dtype=scenes.dtype) - scenes.shape[-1] // 2
    mass = scenes[:, 0]
    rows, columns = torch.meshgrid(at, at, indexing="ij")
    places = torch.stack([rows, columns], -1)
    return torch.einsum("nhw,hwi,hwj->nij", mass, places, places), mass.sum((1, 2))


def test_a_disk_spreads_light_evenly_over_its_area() -> None:
    blurred = defocus_blur(spot(), 6.0)
    covariance, mass = moments(blurred)
    torch.testing.assert_close(mass, torch.ones_like(mass))
    assert float(covariance[0, 0, 0]) == pytest.approx(6.0**2 / 4, rel=0.03)
    assert float(covariance[0, 0, 1]) == pytest.approx(0, abs=1e-12)
    inside = blurred[0, 0, 16, 11:22]
    torch.testing.assert_close(inside, inside[0].expand_as(inside))
    assert float(inside[0]) == pytest.approx(1 / (np.pi * 36), rel=0.03)


def test_motion_spreads_light_along_a_line(generator: torch.Generator) -> None:
    covariance, mass = moments(motion_blur(spot(), 9.0, generator))
    torch.testing.assert_close(mass, torch.ones_like(mass), rtol=1e-9, atol=0)
    values, vectors = torch.linalg.eigh(covariance)
    assert bool((values[:, 0] < 0.3).all())  # no wider than the pixels it is read between
    assert float(values[:, 1].mean()) == pytest.approx(9.0**2 / 12, rel=0.15)
    assert float(vectors[:, 0, 1].square().mean()) == pytest.approx(0.5, abs=0.15)  # in every direction


@pytest.mark.parametrize("blur", [gaussian_blur, defocus_blur, motion_blur])
def test_what_is_even_stays_even(blur, generator: torch.Generator) -> None:
    even = torch.full((2, 3, 5, 7), 0.3, dtype=torch.float64)
    torch.testing.assert_close(blur(even, 2.5, generator), even)


@pytest.fixture
def tiles(generator: torch.Generator) -> Tensor:
    return torch.rand(2, 3, 16, 24, generator=generator, dtype=torch.float64)


def test_pixels_are_the_means_of_their_cells(tiles: Tensor) -> None:
    found = pixelate(tiles, 0.25)
    expected = tiles.unflatten(3, (6, 4)).unflatten(2, (4, 4)).mean((3, 5))
    torch.testing.assert_close(found, expected.repeat_interleave(4, 2).repeat_interleave(4, 3))
    uneven = pixelate(tiles, 0.8)  # 13 rows of cells, 3 of them of two pixels, by 19 columns
    torch.testing.assert_close(uneven.mean((2, 3)), tiles.mean((2, 3)), rtol=0.05, atol=0)
    assert int((uneven[0, 0].diff(dim=0).abs().amax(1) > 0).sum()) == 12
    assert int((uneven[0, 0].diff(dim=1).abs().amax(0) > 0).sum()) == 18


@pytest.mark.parametrize(("quality", "scale"), [(50.0, 1.0), (10.0, 5.0), (80.0, 0.4)])
def test_blocks_are_rounded_to_the_steps_of_the_table(tiles: Tensor, quality: float, scale: float) -> None:
    found = jpeg(tiles, quality)
    block = 255 * tiles[1, 2, 8:, 16:].numpy() - 128
    steps = np.round(np.array(LUMINANCE) * scale).clip(1, 255)
    rounded = np.round(fft.dctn(block, norm="ortho") / steps) * steps
    expected = (fft.idctn(rounded, norm="ortho") + 128) / 255
    np.testing.assert_allclose(found[1, 2, 8:, 16:].numpy(), expected, atol=1e-12)


def test_the_best_quality_loses_little_and_odd_sizes_are_kept(generator: torch.Generator) -> None:
    tiles = torch.rand(1, 1, 13, 21, generator=generator, dtype=torch.float64)
    assert jpeg(tiles, 5.0).shape == tiles.shape
    assert float((jpeg(tiles, 100.0) - tiles).abs().max()) < 0.02
