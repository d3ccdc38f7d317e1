"""Patches cover an image, their covariances are those of many draws, and densities are PyTorch's."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import MultivariateNormal, Normal

from lapwing.ct.patches import FLOOR, log_density, patch_covariance, psnr, tiles
from lapwing.ground.errors import DataError, NumericalError, ShapeError
from tests.checker import unchecked
from tests.posterior_cases import normal, refused


def test_variances_are_unbiased_and_covariances_half_the_truth() -> None:
    truth = torch.tensor([[2.0, 0.8, -0.5], [0.8, 1.0, 0.3], [-0.5, 0.3, 0.7]]).double()
    draws = normal(100_000, 3) @ torch.linalg.cholesky(truth).mT
    halved = 0.5 * (truth + torch.diag(truth.diagonal()))
    torch.testing.assert_close(patch_covariance(draws), halved, atol=0.02, rtol=0)
    few = patch_covariance(normal(2, 9))
    assert bool((torch.linalg.eigvalsh(few) > 0).all())  # of rank 2, were it not shrunk


@pytest.mark.parametrize(("shape", "size"), [((5, 7), 3), ((4, 3, 5), 2), ((4, 4), 9)])
def test_patches_cover_every_pixel_once_and_are_blocks(shape: tuple[int, ...], size: int) -> None:
    found = list(tiles(shape, size))
    assert torch.cat(found).sort().values.tolist() == list(range(torch.Size(shape).numel()))
    for patch in found:
        places = torch.stack(torch.unravel_index(patch, shape))
        extent = places.amax(1) - places.amin(1) + 1
        assert int(extent.max()) <= size and extent.prod() == len(patch)


def test_densities_are_those_of_gaussian_patches() -> None:
    mean, truth, draws = normal(4, 6), normal(4, 6, seed=1), normal(50, 24, seed=2)
    floor = FLOOR * float(truth.max() - truth.min()) ** 2
    std = (draws.square().mean(0) + floor).sqrt().view(4, 6)
    assert log_density(mean, draws, truth) == pytest.approx(float(Normal(mean, std).log_prob(truth).mean()))
    inside = normal(4, 6, seed=3) > 0
    alone = Normal(mean, std).log_prob(truth)[inside].mean()
    assert log_density(mean, draws, truth, mask=inside) == pytest.approx(float(alone))
    total = 0.0
    for patch in tiles((4, 6), 3):
        index = patch[inside.flatten()[patch]]
        covariance = patch_covariance(draws[:, index]) + floor * torch.eye(len(index))
        total += float(MultivariateNormal(mean.flatten()[index], covariance).log_prob(truth.flatten()[index]))
    found = log_density(mean, draws, truth, size=3, mask=inside)
    assert found == pytest.approx(total / int(inside.sum()))


@pytest.mark.parametrize("unit", [1e-3, 1e3])
def test_another_unit_of_the_image_moves_the_density_by_its_logarithm(unit: float) -> None:
    mean, truth, draws = normal(4, 6), normal(4, 6, seed=1), 1e-3 * normal(5, 24, seed=2)
    here, there = log_density(mean, draws, truth, size=3), log_density(unit * mean, unit * draws, unit * truth, size=3)
    assert there == pytest.approx(here - math.log(unit))


def test_a_constant_truth_adds_nothing_to_variances() -> None:
    mean, truth, draws = normal(4, 6), torch.full((4, 6), 2.0).double(), normal(50, 24, seed=2)
    alone = Normal(mean, draws.square().mean(0).sqrt().view(4, 6)).log_prob(truth).mean()
    assert log_density(mean, draws, truth) == pytest.approx(float(alone))
    with refused(NumericalError, "draws whose patches have a density"):
        log_density(mean, 0 * draws, truth)


def test_what_makes_no_sense_is_a_sentence() -> None:
    with refused(ShapeError, "a truth of shape [4, 6]"):
        log_density(normal(4, 6), normal(3, 20), normal(4, 6))
    with refused(DataError, "finite images"):
        log_density(normal(4, 6), normal(3, 24), normal(4, 6) / 0)
    inside = torch.ones(4, 6, dtype=torch.bool)
    for mask in (~inside, inside.float(), inside[:3]):
        with refused(ShapeError, "a boolean mask [4, 6]"), unchecked():
            log_density(normal(4, 6), normal(3, 24), normal(4, 6), mask=mask)
    with refused(NumericalError, "finite draws"):
        log_density(normal(4, 6), normal(3, 24) / 0, normal(4, 6))


def test_psnr_is_that_of_an_error_of_known_size() -> None:
    truth = normal(5, 7)
    span = float(truth.max() - truth.min())
    noise = torch.where(normal(5, 7, seed=1) > 0, 1.0, -1.0)
    assert psnr(truth + 0.1 * span * noise, truth) == pytest.approx(20.0)
    assert psnr(truth, truth) == math.inf and psnr(truth, torch.ones(5, 7).double()) == -math.inf
    with unchecked(), refused(ShapeError, "as the truth is"):
        psnr(truth.mT, truth)
