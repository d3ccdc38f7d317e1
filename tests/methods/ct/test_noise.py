"""Noise has the size that is said, is found again, and impossible counts are named."""

from __future__ import annotations

import math

import pytest
import torch

from lapwing.ground.errors import ConfigError, DataError, ShapeError, UnsupportedError
from lapwing.methods.ct.beams import Parallel2d
from lapwing.methods.ct.geometry import equidistant
from lapwing.methods.ct.noise import add_gaussian, count_photons, log_transform, noise_level
from lapwing.methods.ct.phantoms import shepp_logan, walnut
from lapwing.methods.ct.projector import Projector
from tests.checker import unchecked
from tests.posterior_cases import refused


def test_counts_that_are_whole_numbers_are_read_as_real_ones() -> None:
    y, _ = log_transform(torch.full((1, 2), 100, dtype=torch.uint8), 300.7)
    torch.testing.assert_close(y, torch.full((1, 2), math.log(300.7 / 100.5)))


def test_gaussian_noise_is_a_fraction_of_the_mean_size(generator: torch.Generator) -> None:
    clean = torch.linspace(-3.0, 5.0, 40_000).view(200, 200)
    noisy, std = add_gaussian(clean, 0.1, generator=generator)
    assert std == pytest.approx(0.1 * float(clean.abs().mean()))
    torch.testing.assert_close(float((noisy - clean).std()), std, rtol=0.02, atol=0)


@pytest.mark.parametrize("integral", [0.3, 2.0])
def test_counts_have_the_mean_and_their_logarithms_mean_and_variance(
    integral: float, generator: torch.Generator
) -> None:
    """Mean and variance of 200,000 rays, known to 4 standard errors; the bias without the half would be 10 of them."""
    n, photons = 200_000, 300.0
    expected = photons * math.exp(-integral)
    counts = count_photons(torch.full((n,), integral).double(), photons, generator=generator)
    assert abs(float(counts.mean()) - expected) < 4 * math.sqrt(expected / n)
    y, variance = log_transform(counts, photons)
    error = float(y.std()) / math.sqrt(n)
    assert abs(float(y.mean()) - integral) < 4 * error + 1 / expected**2
    torch.testing.assert_close(float(variance.mean()), float(y.var()), rtol=0.03, atol=0)


def test_a_flat_field_is_taken_bin_by_bin_and_nothing_counted_is_finite() -> None:
    flat = torch.tensor([100.0, 200.0])
    y, variance = log_transform(torch.tensor([[50.0, 100.0], [0.0, 0.0]]), flat)
    torch.testing.assert_close(y[0], torch.log(flat / torch.tensor([50.5, 100.5])))
    torch.testing.assert_close(y[1], torch.log(2 * flat))
    assert variance[1].tolist() == [2.0, 2.0]


@pytest.mark.parametrize("fraction", [0.05, 0.1])
@pytest.mark.parametrize("phantom", ["head", "walnut"])
def test_the_noise_of_a_sinogram_is_found(phantom: str, fraction: float, generator: torch.Generator) -> None:
    image = shepp_logan(128) if phantom == "head" else walnut((128, 128), generator=generator)
    projector = Projector(Parallel2d((128, 128), equidistant(20)), torch.float64)
    clean = projector.push(image.flatten()).view(projector.geometry.sinogram)
    noisy, std = add_gaussian(clean, fraction, generator=generator)
    assert noise_level(noisy) == pytest.approx(std, rel=0.12)


def test_impossible_rays_are_named() -> None:
    counts = torch.full((3, 4), 5.0)
    counts[2, 1] = -1.0
    with refused(DataError, "1 negative ones of 12, the first at angle 2, bin 1"):
        log_transform(counts, 10.0)
    counts[0, 3] = math.nan
    with refused(DataError, "the first at angle 0, bin 3"):
        log_transform(counts, 10.0)
    with refused(DataError, "the first at ray 0"):
        noise_level(torch.full((9,), math.nan))
    with refused(DataError, "positive photons. Got 0"):
        log_transform(torch.ones(2, 3), torch.tensor([1.0, 0.0, 1.0]))
    for field in (torch.ones(5), torch.ones(4, 1), torch.ones(1, 3, 4)):
        with refused(ShapeError, f"or of each bin of counts [3, 4]. Got {list(field.shape)}"):
            log_transform(torch.ones(3, 4), field)
    with refused(ShapeError, "at least one ray. Got [0, 7]"):
        noise_level(torch.zeros(0, 7))
    with refused(ShapeError, "at least one ray. Got [0]"):
        add_gaussian(torch.zeros(0))
    with refused(UnsupportedError, "real numbers. Got torch.int64. Try sinogram.float()"), unchecked():
        add_gaussian(torch.ones(3, 4, dtype=torch.long))
    with refused(ShapeError, "at least 5 bins. Got [7, 4]"):
        noise_level(torch.zeros(7, 4))
    with refused(ConfigError, "a positive fraction"):
        add_gaussian(torch.zeros(3), 0.0)
    with refused(ConfigError, "a positive photons"):
        count_photons(torch.zeros(3), -1.0)
