"""Noise has the size that is said, is found again, and impossible counts are named."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from lapwing.ct.beams import FanBeam, Parallel2d, Parallel3d
from lapwing.ct.geometry import Geometry, equidistant
from lapwing.ct.noise import add_gaussian, count_photons, likeliest, log_transform, noise_level
from lapwing.ct.phantoms import Ellipses, walnut
from lapwing.ct.projector import Projector
from lapwing.ground.errors import ConfigError, DataError, ShapeError, UnsupportedError
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


@pytest.mark.parametrize(("size", "angles"), [(32, 14), (64, 5)])
@pytest.mark.parametrize("fraction", [0.01, 0.05])
def test_the_noise_of_a_scan_is_within_a_few_of_its_standard_errors(
    size: int, angles: int, fraction: float, generator: torch.Generator
) -> None:
    projector = Projector(Parallel2d((size, size), equidistant(angles)), torch.float64)
    clean = projector.push(walnut((size, size), generator=generator).flatten())
    noisy, std = add_gaussian(clean, fraction, generator=generator)
    found = noise_level(noisy, projector.geometry)
    assert abs(found.value - std) < 3 * found.stderr < 0.5 * std


def test_thin_structures_are_no_noise(generator: torch.Generator) -> None:
    """A skull of less than a pixel: the power of the image falls slowly, which the scan tells."""
    geometry = Parallel2d((16, 16), equidistant(12))
    noisy, std = add_gaussian(Ellipses(scale=8.0).sinogram(geometry), 0.05, generator=generator)
    found = noise_level(noisy, geometry)
    assert abs(found.value - std) < 3 * found.stderr < 0.5 * std


@pytest.mark.parametrize("shape", ["fan", "slices"])
def test_the_noise_of_fans_and_slices_is_found_in_any_unit(shape: str, generator: torch.Generator) -> None:
    """Exact line integrals, no pixels: what pixels do not resolve is no noise."""
    head = Ellipses(((1.0, 0.9, 0.6, 0.1, 0.0, 0.3), (-0.4, 0.3, 0.25, -0.2, 0.1, 0.0)))
    if shape == "fan":
        geometry: Geometry = FanBeam((24, 24), equidistant(14, 2 * math.pi), 20, 0.1, source=4.0, distance=2.0)
        clean = head.sinogram(geometry)
    else:
        geometry = Parallel3d((24, 24), equidistant(10), 20, 0.12, layers=2)
        one = head.sinogram(Parallel2d((24, 24), equidistant(10), 20, 0.12))
        clean = torch.stack([one, 0.5 * one], 1)
    noisy, std = add_gaussian(1e3 * clean, 0.05, generator=generator)
    found = noise_level(noisy, geometry)
    assert abs(found.value - std) < 3 * found.stderr < 0.6 * std
    assert found.samples == noisy.numel()


def test_the_likeliest_noise_is_that_of_dense_matrices(generator: torch.Generator) -> None:
    """In log v and log σ² together, with Fisher's information as half the traces of what the derivatives come to."""
    n, slices = 30, 2
    basis = torch.linalg.qr(torch.randn(n, n, generator=generator).double())[0]
    values = torch.linspace(-9.0, 2.0, n, dtype=torch.float64).exp()
    kernel, eye = basis * values @ basis.mT, torch.eye(n, dtype=torch.float64)
    drawn = torch.randn(n, slices, generator=generator).double() * (4 * values + 0.05).sqrt()[:, None]
    found = likeliest(values, drawn.square().mean(1), slices)

    def loss(logs: np.ndarray) -> float:
        v, s = np.exp(logs)
        density = torch.distributions.MultivariateNormal(0 * kernel[0], v * kernel + s * eye)
        return -float(density.log_prob((basis @ drawn).mT).sum())

    v, s = np.exp(minimize(loss, [1.0, -3.0], method="Nelder-Mead", options={"xatol": 1e-5, "fatol": 1e-9}).x)
    assert found.std == pytest.approx(math.sqrt(s), rel=1e-3)
    parts = [torch.linalg.solve(v * kernel + s * eye, part) for part in (v * kernel, s * eye)]
    information = torch.tensor([[0.5 * slices * float((one * other.mT).sum()) for one in parts] for other in parts])
    assert found.stderr == pytest.approx(0.5 * found.std * float(information.double().inverse()[1, 1].sqrt()), rel=1e-3)


def test_a_blank_scan_has_no_noise() -> None:
    geometry = Parallel2d((4, 4), equidistant(3))
    assert noise_level(torch.zeros(geometry.sinogram), geometry).value == 0


def test_impossible_rays_are_named() -> None:
    counts = torch.full((3, 4), 5.0)
    counts[2, 1] = -1.0
    with refused(DataError, "the first at angle 2, bin 1"):
        log_transform(counts, 10.0)
    counts[0, 3] = math.nan
    with refused(DataError, "the first at angle 0, bin 3"):
        log_transform(counts, 10.0)
    with refused(DataError, "the first at angle 0, bin 0"):
        noise_level(torch.full((3, 9), math.nan), Parallel2d((6, 6), equidistant(3), detector=9))
    with refused(DataError, "positive photons. Got 0"):
        log_transform(torch.ones(2, 3), torch.tensor([1.0, 0.0, 1.0]))
    for field in (torch.ones(5), torch.ones(4, 1), torch.ones(1, 3, 4)):
        with refused(ShapeError, f"counts [3, 4]. Got {list(field.shape)}"):
            log_transform(torch.ones(3, 4), field)
    with refused(ShapeError, "at least one ray. Got [0]"):
        add_gaussian(torch.zeros(0))
    with refused(UnsupportedError, "real numbers. Got torch.int64. Try sinogram.float()"), unchecked():
        add_gaussian(torch.ones(3, 4, dtype=torch.long))
    with refused(ShapeError, "of shape [3, 9]. Got [7, 4]"):
        noise_level(torch.zeros(7, 4), Parallel2d((6, 6), equidistant(3), detector=9))
    with refused(ConfigError, "a positive fraction"):
        add_gaussian(torch.zeros(3), 0.0)
    with refused(ConfigError, "a positive photons"):
        count_photons(torch.zeros(3), -1.0)
    with refused(ConfigError, "finite photons. Got inf"):
        count_photons(torch.zeros(3), math.inf)
    with refused(DataError, "0 or more. Got one of -800"):
        count_photons(torch.tensor([0.0, -800.0]), 10.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_photons_behind_sinograms_in_half_precision_are_whole_numbers(
    dtype: torch.dtype, generator: torch.Generator
) -> None:
    counts = count_photons(torch.zeros(4000, dtype=dtype), 1e5, generator=generator)
    assert counts.dtype == torch.float32 and bool((counts == counts.round()).all())
    assert abs(float(counts.double().mean()) - 1e5) < 5 * (1e5 / 4000) ** 0.5


def test_more_photons_than_whole_numbers_hold_are_counted(generator: torch.Generator) -> None:
    counts = count_photons(torch.zeros(50).double(), 2e19, generator=generator)
    assert float((counts / 2e19 - 1).abs().max()) < 6 / math.sqrt(2e19)
