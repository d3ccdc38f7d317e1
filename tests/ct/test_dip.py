"""The deep image prior: it fits what it is shown, stops by what it is not, and goes on where it stopped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lapwing.ct import dip
from lapwing.ct.dip import LOOK, DeepImagePrior, pretrained
from lapwing.ct.variation import total_variation
from lapwing.ground.errors import ConfigError, ConvergenceWarning, DataError, MismatchError, NumericalError, ShapeError
from tests.checker import unchecked
from tests.linear_models import Rays
from tests.posterior_cases import normal, refused

NOISE = 0.1
RAYS = Rays(normal(40, 15))
TRUTH = (normal(15, seed=1) > 0).double()
SINOGRAM = RAYS.push(TRUTH[:, None])[:, 0] + NOISE * normal(40, seed=2)
Z = torch.ones(1, 1, 3, 5).double()


class Free(nn.Module):
    """Every pixel a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.pixels = nn.Parameter(torch.zeros(1, 1, 3, 5, dtype=torch.float64))

    def forward(self, z: Tensor) -> Tensor:
        return self.pixels * z


def prior(**options: object) -> DeepImagePrior:
    return DeepImagePrior(**{"tv": 1.0, "rate": 0.05, "steps": 400, "held_out": 0.2} | options)  # type: ignore[arg-type]


def test_it_finds_an_image_and_leaves_the_network_as_it_was() -> None:
    net = Free()
    found = prior(rate=0.03, held_out=0.025).fit(net, Z, RAYS, SINOGRAM, noise_std=NOISE)
    assert torch.equal(net.pixels, torch.zeros_like(net.pixels))
    assert found.image.shape == (3, 5) and not found.network.training
    torch.testing.assert_close(found.image, found.network(Z)[0, 0].detach())
    assert float((found.image - TRUTH.view(3, 5)).abs().mean()) < 0.1
    assert 0 < found.held_out == min(found.trace) and found.step == LOOK * found.trace.index(found.held_out)


def test_it_keeps_the_weights_that_fit_the_rays_held_out_and_stops_when_it_lost_patience() -> None:
    """Few rays, all of the image free: the descent fits their noise in the end."""
    rays = Rays(RAYS.matrix[:14])
    short = prior(patience=50, tv=1e-3, held_out=0.3)
    found = short.fit(Free(), Z, rays, SINOGRAM[:14], noise_std=NOISE)
    assert len(found.trace) < 400 / LOOK and found.held_out < found.trace[-1]
    assert len(found.trace) - 1 == (found.step + short.patience) // LOOK
    order = torch.randperm(14, generator=torch.Generator().manual_seed(0))[:4]
    residual = (rays.push(found.image.reshape(-1, 1))[:, 0] - SINOGRAM[:14])[order] / NOISE
    assert found.held_out == pytest.approx(float(residual.square().mean()))


def test_a_step_descends_the_objective_of_the_rays_seen_and_those_held_out_are_not_among_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``½ |T x - y|² / σ² + λ TV(x)`` over the rays seen, a ray; its gradient no longer than 1."""
    made = list[dip._Task]()
    known = dip._Task
    monkeypatch.setattr(dip, "_Task", lambda *fields: (made.append(known(*fields)), made[-1])[1])
    with pytest.warns(ConvergenceWarning, match="still falling"):
        prior(steps=1, tv=3.0).fit(Free(), Z, RAYS, SINOGRAM, noise_std=NOISE)
    (task,) = made
    assert sorted(torch.cat([task.seen, task.held]).tolist()) == list(range(40)) and len(task.held) == 8
    net, image = Free(), normal(1, 1, 3, 5, seed=7).requires_grad_()
    with torch.no_grad():
        net.pixels.copy_(image)
    residual = (RAYS.matrix @ image.flatten() - SINOGRAM)[task.seen] / NOISE
    objective = (0.5 * residual.square().sum() + 3.0 * total_variation(image[0, 0])) / 32
    (slope,) = torch.autograd.grad(objective, image)
    loss, _ = replace(task, network=net).step(torch.optim.SGD(net.parameters(), 1.0))
    assert loss == pytest.approx(float(objective)) and float(slope.norm()) > 1
    torch.testing.assert_close(net.pixels.detach(), image.detach() - slope / slope.norm(), rtol=1e-5, atol=1e-6)


def test_a_network_that_does_not_learn_is_told_so() -> None:
    dead = nn.Sequential(nn.Conv2d(1, 1, 1, dtype=torch.float64), nn.Hardtanh(5.0, 6.0))
    with pytest.warns(ConvergenceWarning, match="did not fit the scan"):
        prior(patience=20).fit(dead, Z, RAYS, SINOGRAM, noise_std=NOISE)


def test_frozen_weights_stay_as_they_are(generator: torch.Generator) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 1, 3, padding=1)).double()
    net[0].requires_grad_(False)
    with pytest.warns(ConvergenceWarning):
        found = prior(steps=100).fit(net, Z, RAYS, SINOGRAM, noise_std=NOISE)
    assert torch.equal(found.network[0].weight, net[0].weight)
    assert not torch.equal(found.network[1].weight, net[1].weight)
    with refused(ConfigError, "none that needs a gradient"):
        prior().fit(net.requires_grad_(False), Z, RAYS, SINOGRAM, noise_std=NOISE)


def test_a_fit_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "fit.safetensors"
    whole = prior(steps=60).fit(Free(), Z, RAYS, SINOGRAM, noise_std=NOISE)
    with pytest.warns(ConvergenceWarning, match="still falling after 30 steps"):
        prior(steps=30, checkpoint=path).fit(Free(), Z, RAYS, SINOGRAM, noise_std=NOISE)
    resumed = prior(steps=60, checkpoint=path).fit(Free(), Z, RAYS, SINOGRAM, noise_std=NOISE)
    assert resumed.trace == whole.trace and torch.equal(resumed.image, whole.image)
    with refused(MismatchError, "come to"):
        prior(checkpoint=path).fit(Free(), -3 * Z, RAYS, SINOGRAM, noise_std=NOISE)
    with refused(MismatchError, "tv 2.0"):
        prior(tv=2.0, checkpoint=path).fit(Free(), Z, RAYS, SINOGRAM, noise_std=NOISE)


def test_total_variation_is_zero_for_what_does_not_vary_and_adds_up_steps_in_any_dimension() -> None:
    assert float(total_variation(torch.ones(3, 4, 2))) == 0
    box = torch.zeros(5, 6, 7)
    box[1:3, 2:5, 3:4] = 2.0
    assert float(total_variation(box)) == 2 * 2 * (3 * 1 + 2 * 1 + 2 * 3)


def test_a_network_learns_from_generated_pairs() -> None:
    target = normal(1, 1, 3, 5)
    net = Free()
    made = pretrained(net, [(Z, target)] * 300, rate=0.05)
    assert float((made(Z) - target).detach().abs().max()) < 1e-2 and not net.pixels.any()


def test_what_makes_no_sense_is_a_sentence() -> None:
    with refused(ShapeError, "a flat sinogram [40]"):
        prior().fit(Free(), Z, RAYS, SINOGRAM[:4], noise_std=NOISE)
    for network, z in ((Free(), torch.ones(2, 1, 3, 5).double()), (nn.Conv2d(1, 2, 1).double(), Z), (nn.Flatten(), Z)):
        with unchecked(), refused(ShapeError, "an image [1, 1, *space] of 15 pixels"):
            prior().fit(network, z, RAYS, SINOGRAM, noise_std=NOISE)
    with refused(DataError, "measurements"):
        prior().fit(Free(), Z, RAYS, SINOGRAM / 0, noise_std=NOISE)
    net = Free()
    with torch.no_grad():
        net.pixels[0, 0, 0, 0] = torch.inf
    with refused(NumericalError, "a network that trains"):
        prior().fit(net, Z, RAYS, SINOGRAM, noise_std=NOISE)
