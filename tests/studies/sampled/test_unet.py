from __future__ import annotations

import math

import pytest
import torch

import lapwing as lw
from benchmarks.command import Setting
from lapwing import ct
from studies.sampled import unet
from studies.sampled.unet import Scan, TangentImage, blocks_of, covariance, scores

SETTING = Setting(quick=True, seeds=1, more={"first": 0, "rate": 5e-3})


@pytest.fixture(scope="module")
def scan() -> Scan:
    return Scan.of(unet.images(SETTING)[0], 0, SETTING)


@pytest.fixture(scope="module")
def tangent(scan: Scan) -> TangentImage:
    return TangentImage.of(scan.found)


def test_another_basis_of_a_block_has_the_same_kernel_outputs_and_norm(scan: Scan, tangent: TangentImage) -> None:
    """Against the Jacobian by automatic differentiation, weight by weight."""
    network, z = scan.found.network, scan.found.z
    params = {name: value.detach() for name, value in network.named_parameters() if value.ndim > 1}
    jacobian = torch.func.jacrev(lambda chosen: torch.func.functional_call(network, chosen, (z,)).flatten())(params)
    parts = tangent.features.split(tangent.network.sizes, dim=1)
    assert len(parts) == len(unet.BLOCKS) + 1
    for part, turned, block in zip(parts, tangent.network.parameters(), [*unet.BLOCKS, ""], strict=True):
        others = [name for name in params if not name.startswith(unet.BLOCKS)]
        names = [name for name in params if name.startswith(block)] if block else others
        assert names
        rows = torch.cat([jacobian[name].flatten(1) for name in names], 1).detach().double()
        weights = torch.cat([params[name].flatten() for name in names]).double()
        largest = float(rows.square().sum(1).max())
        torch.testing.assert_close(part @ part.mT, rows @ rows.mT, rtol=0, atol=1e-5 * largest)
        torch.testing.assert_close((part @ turned[0]).detach(), rows @ weights, rtol=0, atol=1e-4)
        assert float(turned.detach().norm()) == pytest.approx(float(weights.norm()), rel=1e-5)


def test_blocks_have_all_weights_once_and_the_others_come_last() -> None:
    names = ("down.0.0.weight", "skips.0.weight", "up.0.1.weight", "down.0.3.weight", "head.weight")
    found = blocks_of(names, (2, 1, 3, 1, 2))
    assert [part.tolist() for part in found] == [[0, 1, 6], [3, 4, 5], [2, 7, 8]]


def test_the_evidence_at_the_mode_is_largest_where_the_tangent_model_makes_the_scan_likeliest(
    scan: Scan, tangent: TangentImage
) -> None:
    """``log N(y + T (J w̃ - x̃); 0, T J Jᵀ Tᵀ / a + I / b)`` is stationary in log a and log b."""
    posterior = tangent.posterior(scan, lw.Isotropic(1.0))
    tuned = lw.tune(posterior, lw.EM(steps=500, tolerance=1e-5))
    rows = scan.matrix.double() @ tangent.features
    weights = torch.cat(list(tangent.network.parameters()), 1)[0].detach()
    image = scan.found.image.flatten().double()
    targets = scan.sinogram.double() + rows @ weights - scan.matrix.double() @ image

    def evidence(logs: torch.Tensor) -> torch.Tensor:
        noise = scan.noise_std**2 / logs[1].exp() * torch.eye(len(rows)).double()
        return torch.distributions.MultivariateNormal(
            torch.zeros_like(targets), rows @ rows.mT / logs[0].exp() + noise
        ).log_prob(targets)

    logs = torch.tensor([float(tuned.prior_precisions), tuned.noise_scale]).double().log()
    gradient = torch.func.grad(evidence)(logs)
    curvature = torch.func.hessian(evidence)(logs)
    assert float(torch.linalg.solve(curvature, gradient).abs().max()) < 1e-3
    assert bool((torch.linalg.eigvalsh(curvature) < 0).all())


def test_the_covariance_of_the_image_is_that_of_the_rays_and_scores_are_its_density(
    scan: Scan, tangent: TangentImage
) -> None:
    posterior = tangent.posterior(scan, lw.Layerwise(3.0))
    prior = tangent.features @ tangent.features.mT / 3.0
    seen = scan.matrix.double() @ prior
    noise = scan.noise_std**2 * torch.eye(len(seen)).double()
    expected = prior - seen.mT @ torch.linalg.solve(seen @ scan.matrix.double().mT + noise, seen)
    found = covariance(posterior, tangent.features)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 * float(prior.diagonal().max()))
    truth = torch.arange(144.0).view(12, 12) / 143
    flat = Scan(truth, scan.matrix, scan.sinogram, scan.noise_std, scan.found)
    error = torch.linspace(-0.3, 0.3, 144).double()
    row = scores(error, found, flat)
    deviations = torch.diag(12 * found.diagonal().sqrt())  # 144 draws, of these variances
    assert row["nll"] == pytest.approx(-ct.log_density(truth.double() - error.view(12, 12), deviations, truth.double()))
    covariance_of_all = found + 1e-6 * torch.eye(144).double()
    quadratic = error @ torch.linalg.solve(covariance_of_all, error)
    by_hand = 0.5 * (quadratic + torch.logdet(covariance_of_all)) / 144 + 0.5 * math.log(2 * math.pi)
    assert row["joint"] == pytest.approx(float(by_hand))
