from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor

from lapwing.evaluation.corruptions.blur import defocus_blur, filtered, gaussian_blur, motion_blur


@pytest.fixture
def x(generator: torch.Generator) -> Tensor:
    return torch.rand(3, 2, 13, 17, generator=generator, dtype=torch.float64)


def test_gaussian_blur_equals_that_of_scipy(x: Tensor) -> None:
    for std in (0.4, 1.0, 1.7):
        expected = ndimage.gaussian_filter(x.numpy(), (0, 0, std, std), mode="nearest", radius=int(np.ceil(3 * std)))
        np.testing.assert_allclose(gaussian_blur(x, std).numpy(), expected, rtol=1e-12)


def test_filters_equal_those_of_scipy(x: Tensor, generator: torch.Generator) -> None:
    kernel = torch.rand(3, 5, generator=generator, dtype=torch.float64)
    expected = ndimage.correlate(x.numpy(), kernel.numpy()[None, None], mode="nearest")
    np.testing.assert_allclose(filtered(x, kernel).numpy(), expected, rtol=1e-12)


def spot(side: int = 33) -> Tensor:
    x = torch.zeros(50, 1, side, side, dtype=torch.float64)
    x[:, :, side // 2, side // 2] = 1
    return x


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Covariance of the places of the light, and how much there is."""
    at = torch.arange(x.shape[-1], dtype=x.dtype) - x.shape[-1] // 2
    mass = x[:, 0]
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
