"""Gaussian pixels: their covariance, and the one that makes a sinogram likeliest, against dense densities."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from lapwing.ct.pixels import fit_pixels, pixel_prior
from lapwing.ground.errors import ConfigError, DataError, ShapeError
from tests.checker import unchecked
from tests.linear_models import Rays
from tests.posterior_cases import normal, refused

SHAPE, STD = (5, 7), 0.3
RAYS = Rays(normal(20, 35))


def covariance(lengthscale: float | None) -> Tensor:
    root = pixel_prior(SHAPE, lengthscale, like=normal(1)).features.view(35, 35)
    return root @ root.mT


def test_pixels_are_independent_or_correlated_by_their_distance() -> None:
    assert torch.equal(covariance(None), torch.eye(35).double())
    torch.testing.assert_close(covariance(1.5).diagonal(), torch.ones(35).double())
    torch.testing.assert_close(covariance(1.5)[0, 7 + 2], torch.tensor(-(5**0.5) / 1.5).double().exp())


@pytest.mark.parametrize("lengthscale", [None, 3.0])
def test_the_fit_is_where_the_evidence_is_largest(lengthscale: float | None) -> None:
    y = RAYS.push(2.0 * torch.linalg.cholesky(covariance(lengthscale)) @ normal(35, seed=1))
    found = fit_pixels(RAYS, y, SHAPE, noise_std=STD, lengthscales=(None, 3.0, 30.0))

    def evidence(scale: float | None, variance: float) -> float:
        spread = variance * RAYS.matrix @ covariance(scale) @ RAYS.matrix.mT + STD**2 * torch.eye(20)
        return float(MultivariateNormal(torch.zeros(20).double(), spread).log_prob(y))

    assert found.lengthscale == lengthscale
    assert found.log_evidence == pytest.approx(evidence(lengthscale, found.variance), abs=1e-6)
    tried = [evidence(scale, float(v)) for scale in (None, 3.0, 30.0) for v in torch.linspace(-4, 6, 60).exp()]
    assert found.log_evidence >= max(tried)


def test_what_makes_no_sense_is_a_sentence() -> None:
    with refused(ShapeError, "an operator for this sinogram and image"):
        fit_pixels(RAYS, torch.zeros(20).double(), (5, 6), noise_std=STD)
    with refused(ConfigError, "Got 0.0. Try lengthscale=4.0"):
        pixel_prior(SHAPE, 0.0)
    with refused(ConfigError, "a positive lengthscale. Got -1.0"):
        fit_pixels(RAYS, torch.zeros(20).double(), SHAPE, noise_std=STD, lengthscales=[None, -1.0])
    with refused(ConfigError, "Try noise_std=0.05, one number for all rays"), unchecked():
        fit_pixels(RAYS, torch.zeros(20).double(), SHAPE, noise_std=torch.ones(20))  # pyright: ignore[reportArgumentType]
    with refused(ConfigError, "at least one of lengthscales="):
        fit_pixels(RAYS, torch.zeros(20).double(), SHAPE, noise_std=STD, lengthscales=[])
    with refused(DataError, "finite measurements"):
        fit_pixels(RAYS, torch.full((20,), torch.nan).double(), SHAPE, noise_std=STD)


@pytest.mark.parametrize("shape", [(0, 4), (2.5, 4), ()])
def test_an_image_without_pixels_is_refused(shape: Any) -> None:
    with refused(ConfigError, "shape"), unchecked():
        pixel_prior(shape)
