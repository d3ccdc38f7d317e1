"""A noise for each ray is a measurement in its units: the posterior is that of the dense model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.ct import DeepImagePrior, Design, ImagePosterior, Parallel2d, Projector, UNet, Whitened, equidistant
from lapwing.ct.operators import measurement
from lapwing.ct.whitened import whitened
from lapwing.ground.errors import ConfigError, DataError, ShapeError
from lapwing.linear.solvers import CG
from lapwing.structures import LowRank
from tests.checker import unchecked
from tests.posterior_cases import normal, refused

ROWS, H, W = 9, 4, 4
T = normal(ROWS, H * W) / 3
STD = torch.linspace(0.2, 2.0, ROWS, dtype=torch.float64)
Y = normal(ROWS, seed=1)
Z = normal(1, 1, H, W, seed=2)


def network() -> UNet:
    return UNet(scales=1, channels=4, generator=torch.Generator().manual_seed(0)).double()


def posterior(operator: Any, y: Tensor, noise_std: Any, **options: Any) -> ImagePosterior:
    solver = CG(rtol=1e-10, preconditioner=LowRank(ROWS))
    return ImagePosterior.of(network(), Z, operator, y, noise_std=noise_std, samples=3, solver=solver, **options)


def test_products_are_those_of_rows_over_their_noise() -> None:
    whitened, v, u = Whitened(measurement(T), STD), normal(H * W, 2), normal(ROWS, 3)
    torch.testing.assert_close(whitened.push(v), (T / STD[:, None]) @ v)
    torch.testing.assert_close(whitened.pull(u), (T / STD[:, None]).mT @ u)
    torch.testing.assert_close(whitened.push(v[:, 0]), whitened.push(v)[:, 0])
    torch.testing.assert_close(whitened.pull(u[:, 0]), whitened.pull(u)[:, 0])


def test_error_bars_are_those_of_each_rays_noise() -> None:
    """``J (Jᵀ Tᵀ N⁻¹ T J + A)⁻¹ Jᵀ``, and the mean of the linear model."""
    found = posterior(measurement(T), Y, STD)
    pixels = torch.eye(H * W, dtype=torch.float64)
    image = found.observed.image
    j = torch.cat([part.movedim(0, -1).reshape(H * W, -1) for part in _rows_of(image)], 1)
    a = found.problem.prior.diagonal()
    precision = j.mT @ T.mT @ torch.diag(STD**-2) @ T @ j + torch.diag(a)
    covariance = j @ torch.linalg.solve(precision, j.mT)
    torch.testing.assert_close(found.covariance(pixels), covariance, rtol=1e-6, atol=1e-9)
    seen = T @ (j @ found.observed.weights - found.mean.flatten())
    shift = torch.linalg.solve(precision, j.mT @ T.mT @ ((Y + seen) / STD**2)) - found.observed.weights
    torch.testing.assert_close(found.linear_mean().flatten(), found.mean.flatten() + j @ shift, rtol=1e-6, atol=1e-8)


def _rows_of(image: Any) -> list[Tensor]:
    """J of an image, by unit weights."""
    chunk = next(iter(image.visit(1)))
    return [chunk.push(column[:, None]) for column in torch.eye(len(image.weights), dtype=torch.float64)]


@pytest.mark.filterwarnings("ignore::lapwing.ground.errors.ConvergenceWarning")  # few steps are no fit
def test_alike_noises_are_one() -> None:
    each, one = posterior(measurement(T), Y, torch.full((ROWS,), 0.5)), posterior(measurement(T), Y, 0.5)
    torch.testing.assert_close(each.std, one.std, rtol=1e-6, atol=0)
    fits = [
        DeepImagePrior(steps=12).fit(network(), Z, measurement(T), Y, noise_std=noise)
        for noise in (torch.full((ROWS,), 0.5), 0.5)
    ]
    torch.testing.assert_close(fits[0].image, fits[1].image, rtol=1e-9, atol=1e-9)
    assert fits[0].held_out == pytest.approx(fits[1].held_out)


def test_a_tensor_without_axes_is_one_number_and_a_tuple_one_a_ray() -> None:
    operator = measurement(T)
    with unchecked():
        for one in (torch.tensor(0.5), np.array(0.5), np.float32(0.5)):
            assert whitened(operator, Y, one)[2] == 0.5  # pyright: ignore[reportArgumentType]
        each, y, std = whitened(operator, Y, tuple(STD.tolist()))
    assert isinstance(each, Whitened) and torch.equal(each.std, STD) and std == 1.0
    torch.testing.assert_close(y, Y / STD)


def test_it_is_saved_with_the_noise_of_its_rays(tmp_path: Any) -> None:
    projector = Projector(Parallel2d((H, W), equidistant(3), detector=3), torch.float64)
    found = posterior(projector, Y, STD)
    lw.save(found, tmp_path / "image.safetensors")
    again = lw.load(tmp_path / "image.safetensors", network())
    assert isinstance(again, ImagePosterior) and isinstance(again.observed.operator, Whitened)
    assert torch.equal(again.observed.operator.std, STD)
    torch.testing.assert_close(again.std, found.std, rtol=1e-9, atol=0)


def test_a_design_has_all_angles_in_the_same_units(generator: torch.Generator) -> None:
    found = posterior(measurement(T), Y, STD)
    more = measurement(torch.cat([T, T[:3]]))
    with refused(ConfigError, "Try lw.ct.Whitened(operator, std)"):
        Design.after(found, more, 4, [0, 1, 2], samples=4, generator=generator)
    together = Whitened(more, torch.cat([STD, STD[:3]]))
    assert Design.after(found, together, 4, [0, 1, 2], samples=4, generator=generator).propose(1) == [3]


@pytest.mark.parametrize(
    ("std", "kind", "says"),
    [
        (STD[:3], ShapeError, "one for each of 9 rays. Got [3]"),
        (0 * STD, DataError, "positive finite standard deviations of the rays. Got from 0 to 0"),
        (-0.1, ConfigError, "noise_std"),
    ],
)
def test_what_is_no_noise_is_refused(std: Any, kind: Any, says: str) -> None:
    with unchecked(), refused(kind, says):
        posterior(measurement(T), Y, std)
    with unchecked(), refused(kind, says):
        DeepImagePrior(steps=1).fit(network(), Z, measurement(T), Y, noise_std=std)
