"""A posterior over images comes back with its scan, its choices and its draws, around the same network alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import lapwing as lw
from lapwing.ct import FanBeam, Geometry, ImagePosterior, Parallel2d, Parallel3d, Projector, UNet, equidistant
from lapwing.ground.errors import DataError, MismatchError, UnsupportedError
from lapwing.ground.shared import Shared
from lapwing.linalg import Diagonal
from lapwing.store import read_header
from lapwing.structures import LowRank
from tests.linear_models import Rays
from tests.posterior_cases import normal, refused

GEOMETRIES: tuple[Geometry, ...] = (
    Parallel2d((4, 5), equidistant(3), 6, offset=0.2),
    Parallel3d((4, 5), (0.1, 0.5), 6, pixel_size=0.3, layers=2),
    FanBeam((4, 5), equidistant(3), 6, bin_size=1.5, source=30.0, distance=2.0),
)


def made(geometry: Geometry) -> tuple[UNet, ImagePosterior]:
    net = UNet(len(geometry.image), scales=1, channels=4, generator=torch.Generator().manual_seed(0)).double()
    operator, z = Projector(geometry, torch.float64), normal(1, 1, *geometry.image)
    y, solver = normal(operator.shape[0], seed=1), lw.solvers.CG(rtol=1e-12, preconditioner=LowRank(5))
    posterior = ImagePosterior.of(net, z, operator, y, noise_std=0.5, samples=3, solver=solver)
    return net, lw.tune(posterior, lw.EM(samples=2, steps=2, noise=False))


def known(posterior: ImagePosterior) -> torch.Tensor | None:
    """Its draws, once they were asked for."""
    return posterior._known_deviations


@pytest.mark.filterwarnings("ignore::lapwing.ground.errors.ConvergenceWarning")
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: type(g).__name__)
def test_it_comes_back_as_it_was(geometry: Geometry, tmp_path: Path) -> None:
    net, posterior = made(geometry)
    lw.save(posterior, tmp_path / "fresh")
    std = posterior.std
    lw.save(posterior, tmp_path / "drawn", notes={"scan": "walnut"})
    for name in ("fresh", "drawn"):
        found = lw.load(tmp_path / name, net)
        assert isinstance(found, ImagePosterior) and (known(found) is not None) == (name == "drawn")
        assert torch.equal(found.mean, posterior.mean)
        torch.testing.assert_close(
            found.std, std, rtol=0 if name == "drawn" else 1e-8, atol=0
        )  # fresh ones are solved for
        assert (found.solver, found.trace, found.samples) == (posterior.solver, posterior.trace, posterior.samples)
        assert torch.equal(found.problem.prior.values, posterior.problem.prior.values)
        assert found.observed.explicit and torch.equal(found.observed.targets, posterior.observed.targets)
    assert read_header(tmp_path / "drawn")["notes"] == {"scan": "walnut"}
    assert lw.tune(found, lw.EM(samples=2, steps=2, noise=False)).trace[-1].prior_precision is not None


def test_what_does_not_belong_to_it_is_refused(tmp_path: Path) -> None:
    net, posterior = made(GEOMETRIES[0])
    lw.save(posterior, tmp_path / "one")
    other = UNet(2, scales=1, channels=4, generator=torch.Generator().manual_seed(1)).double()
    with refused(MismatchError, "the weights the posterior was fitted at"):
        lw.load(tmp_path / "one", other)
    rays = Rays(Projector(GEOMETRIES[0], torch.float64).matrix.to_dense())
    with refused(UnsupportedError, "seen by a Rays"):
        lw.save(replace(posterior, observed=replace(posterior.observed, operator=rays)), tmp_path / "two")
    odd = Shared(normal(2, 20), *posterior._sources_of_deviations)
    lw.save(replace(posterior, solved=odd), tmp_path / "three")
    with refused(DataError, "3 draws of 20 pixels"):
        lw.load(tmp_path / "three", net)
    assert isinstance(posterior.problem.prior, Diagonal)
