"""Numbers mean the same as a tensor, as an array of NumPy, and as nested lists, at every door."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing import ct
from tests.posterior_cases import labels, mlp, normal, seeded

X, Y, NEW = normal(12, 3), labels(12, classes=2), normal(4, 3, seed=2)
SPIRAL = normal(9, 2), normal(9, seed=1), normal(3, 2, seed=2)
GEOMETRY = ct.Parallel2d((6, 6), ct.equidistant(8))
SINOGRAM = normal(*GEOMETRY.sinogram).abs()
As = Callable[[Tensor], Any]


def network(given: As) -> list[Tensor]:
    """Fitted, tuned, asked and scored."""
    posterior = lw.Laplace(lw.Categorical(), weights=lw.LastLayer()).fit(MODEL, (given(X), given(Y)))
    tuned = lw.tune(posterior, lw.Validation((given(X), given(Y))))
    found = lw.evaluate(tuned, (given(X), given(Y)))
    drawn = tuned.sample_functions(given(NEW), 2, generator=torch.Generator().manual_seed(0))
    plain = lw.baselines.PlainNetwork(MODEL, lw.Categorical()).predict(given(NEW))
    return [tuned.predict(given(NEW)).probs, torch.tensor(found["nll"]), drawn, plain.probs]  # type: ignore[union-attr]


def process(given: As) -> list[Tensor]:
    """Gaussian process regression, and classification."""
    x, y, new = map(given, SPIRAL)
    fitted = lw.GP(lw.gp.Matern(1.0), lw.Gaussian(10.0)).fit((x, y))
    drawn = fitted.sample_functions(new, 2, generator=0)
    told = lw.GP(lw.gp.RBF(1.0), lw.Bernoulli()).fit((x, given((SPIRAL[1] > 0).double()[:, None])))
    return [fitted.mean(new), fitted.predict(new).std, drawn, told.predict(new).probs]  # type: ignore[union-attr]


def tomography(given: As) -> list[Tensor]:
    """What takes a sinogram or an image."""
    y, flat, projector = given(SINOGRAM), given(SINOGRAM.flatten()), ct.Projector(GEOMETRY, dtype=torch.float64)
    fitted = ct.DeepImagePrior(steps=2, patience=2).fit(UNET, given(Z), projector, flat, noise_std=0.1)
    images = ct.ImagePosterior.of(UNET, given(Z), projector, flat, noise_std=0.1, samples=2)
    counts = ct.count_photons(y, 1e3, generator=torch.Generator().manual_seed(0))
    return [
        ct.filtered_back_projection(y, GEOMETRY),
        ct.tv_reconstruction(y, projector, 0.1, rtol=0.5).value,
        ct.add_gaussian(y, generator=torch.Generator().manual_seed(0))[0],
        ct.log_transform(given(counts), 1e3)[0],
        torch.tensor([ct.noise_level(y, GEOMETRY).value, ct.psnr(y, given(SINOGRAM / 2))]),
        torch.tensor(ct.fit_pixels(projector, flat, (6, 6), noise_std=0.1, lengthscales=(None,)).log_evidence),
        fitted.image,
        images.mean,
    ]


MODEL, UNET = mlp(), seeded(lambda: ct.UNet(scales=1, channels=4))
Z = normal(1, 1, 6, 6)


@pytest.mark.parametrize("given", [Tensor.numpy, Tensor.tolist], ids=["array", "list"])
@pytest.mark.parametrize("asked", [network, process, tomography])
def test_numbers_mean_the_same_in_whatever_holds_them(asked: Callable[[As], list[Tensor]], given: As) -> None:
    for found, expected in zip(asked(given), asked(lambda values: values), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
