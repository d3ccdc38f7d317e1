"""Complexities of filters are those of their closed form, and what climbs them finds the evidence."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lapwing.ct.filters import Filtered, MaternFilters
from lapwing.ct.image import ImagePosterior
from lapwing.ct.observed import Observed, single_chunk
from lapwing.ct.predcp import WINDOW, TVPredCP, complexities, log_prior, movement, rays_problem
from lapwing.ct.unet import UNet
from lapwing.ct.variation import total_variation
from lapwing.ground.errors import ConfigError, ConvergenceWarning
from lapwing.ground.layout import Layout
from lapwing.likelihoods import Gaussian
from lapwing.linear.model import Matrix
from lapwing.linear.solvers import CG
from lapwing.priors import Isotropic
from lapwing.structures import LowRank
from tests.linear_models import Rays
from tests.posterior_cases import normal, refused

H, W, ROWS = 3, 4, 7
LAYOUT = Layout(
    ("up.0.weight", "up.1.weight", "down.0.0.weight", "head.weight"), ((2, 1, 3, 3),) * 2 + ((1, 3, 2, 3), (1, 2, 1, 1))
)
BLOCKS = ((0, 18), (18, 36), (36, 54), (54, 56))
D = LAYOUT.size
BASE = normal(6, H + 2, W + 2, seed=2)
SHIFTED = [b[i : i + H, j : j + W].flatten() for b in BASE for i in range(3) for j in range(3)]
J = torch.cat([torch.stack(SHIFTED, 1), normal(H * W, 2)], 1)  # an image is its filters' sum, as a network's is
IMAGE = Matrix(J.view(1, H, W, 1, D), at_weights=normal(D, seed=1))
A, PSI = torch.tensor([0.5, 2.0, 1.5, 3.0]).double(), torch.tensor([0.4, 1.0, 2.5, 1.0]).double()
PRIOR = MaternFilters(LAYOUT, A, PSI)


def covariance(prior: MaternFilters) -> Tensor:
    """A⁻¹, tap by tap."""
    found = torch.zeros(D, D).double()
    for k, ((start, end), shape) in enumerate(zip(BLOCKS, LAYOUT.shapes, strict=True)):
        taps = [(i, j) for i in range(shape[2]) for j in range(shape[3])]
        for first in range(start, end, len(taps)):
            for m, p in enumerate(taps):
                for n, q in enumerate(taps):
                    found[first + m, first + n] = (-math.dist(p, q) / prior.lengths[k]).exp() / prior.precisions[k]
    return found


def closed(prior: MaternFilters) -> Tensor:
    """``√(2/π) Σ_ij sd(x_i - x_j)`` of each block with a length-scale."""
    pixels = torch.arange(H * W).view(H, W)
    pairs = torch.cat(
        [
            torch.stack([pixels[1:], pixels[:-1]], -1).view(-1, 2),
            torch.stack([pixels[:, 1:], pixels[:, :-1]], -1).view(-1, 2),
        ]
    )
    steps, whole = J[pairs[:, 0]] - J[pairs[:, 1]], covariance(prior)
    return math.sqrt(2 / math.pi) * torch.stack(
        [(steps[:, a:b] @ whole[a:b, a:b] @ steps[:, a:b].mT).diagonal().sqrt().sum() for a, b in BLOCKS[:3]]
    )


def test_whitened_features_have_the_prior_in_them() -> None:
    assert PRIOR.blocks == ("up.0", "up.1", "down.0", "head") and PRIOR.smooth == (True, True, True, False)
    root = PRIOR.forward(torch.eye(D).double())
    torch.testing.assert_close(root @ root.mT, covariance(PRIOR))
    torch.testing.assert_close(PRIOR.adjoint(torch.eye(D).double()), root.mT)
    torch.testing.assert_close(PRIOR.inverse(root), torch.eye(D).double())
    model = Filtered(IMAGE, PRIOR)
    torch.testing.assert_close(root @ model.weights, IMAGE.weights)
    chunk, features = single_chunk(model, 1), J @ root
    torch.testing.assert_close(chunk.push(torch.eye(D).double()).flatten(1).mT, features)
    torch.testing.assert_close(model.on(chunk.inputs).pull(torch.eye(H * W).double().view(-1, 1, H, W, 1)), features.mT)
    torch.testing.assert_close(model.diagonal(), features.square().sum(0))
    eye = torch.eye(H * W).double().view(-1, 1, H, W, 1)
    torch.testing.assert_close(next(iter(model.rows(chunk.inputs, lambda *_: iter([eye]))))[0], features)


def test_the_complexity_of_a_block_is_its_closed_form_and_so_is_its_derivative() -> None:
    """By draws; the surrogate's derivatives in ψ against those of the closed form."""
    lengths = PSI.log().requires_grad_()
    prior = replace(PRIOR, lengths=lengths.exp())
    found = complexities(prior, single_chunk(IMAGE, 1), 40_000, torch.Generator().manual_seed(0))
    truth = closed(prior)
    torch.testing.assert_close(found, truth, rtol=0.02, atol=0.0)
    slopes = [torch.autograd.grad(k.sum(), lengths, create_graph=True)[0] for k in (found, truth)]
    torch.testing.assert_close(slopes[0], slopes[1], rtol=0.02, atol=0.02)
    value = log_prior(truth, lengths)
    torch.testing.assert_close(value, (slopes[1][:3].abs() / PSI[:3]).log().sum() - truth.sum())


def test_complexity_falls_with_the_length_scale_and_bounds_the_total_variation() -> None:
    grid = [replace(PRIOR, lengths=scale * PSI) for scale in (0.1, 0.5, 1.0, 3.0, 20.0)]
    kappa = torch.stack(
        [complexities(prior, single_chunk(IMAGE, 1), 4000, torch.Generator().manual_seed(0)) for prior in grid]
    )
    assert bool((kappa.diff(dim=0) < 0).all())
    noise = torch.randn(D, 2000, generator=torch.Generator().manual_seed(1)).double()
    noise[54:] = 0.0
    images = (J @ PRIOR.forward(noise)).mT.view(-1, H, W)
    assert float(torch.stack([total_variation(x) for x in images]).mean()) < float(closed(PRIOR).sum())


def test_the_gradient_of_the_evidence_is_that_of_its_dense_form() -> None:
    """At the mode of the same prior: that it moves with the prior changes the evidence in second order alone."""
    rays, y = Rays(normal(ROWS, H * W, seed=3)), normal(ROWS, seed=4)
    posterior = ImagePosterior(Observed(IMAGE, rays, y, Gaussian(2.0)), Isotropic(1.0), Gaussian(4.0), CG())
    rows = rays.matrix @ J
    logs = [A.log().requires_grad_(), PSI.log().requires_grad_()]
    prior = MaternFilters(LAYOUT, logs[0].exp(), logs[1].exp())
    root = prior.forward(torch.eye(D).double())
    dense = 0.25 * torch.eye(ROWS).double() + rows @ root @ root.mT @ rows.mT
    log_density = torch.distributions.MultivariateNormal(torch.zeros(ROWS).double(), dense).log_prob(y)
    truth = torch.autograd.grad(log_density, logs, retain_graph=True)
    recipe, solver = TVPredCP(probes=4000), CG(rtol=1e-10, preconditioner=LowRank(3))
    mode, view = recipe._mode(posterior, PRIOR), rays_problem(posterior, prior)
    torch.testing.assert_close(view.precision.dense(), 4.0 * dense.detach())
    ridge = torch.linalg.solve(4.0 * rows.mT @ rows + torch.linalg.inv(covariance(PRIOR)), 4.0 * rows.mT @ y)
    torch.testing.assert_close(mode[:, 0], ridge, rtol=1e-4, atol=1e-5)
    value = recipe._evidence(posterior, prior, mode, view, solver, torch.Generator().manual_seed(0))
    nowhere = recipe._evidence(posterior, prior, 0 * mode, view, solver, torch.Generator().manual_seed(0))
    quadratic = mode[:, 0] @ torch.linalg.solve(covariance(PRIOR), mode[:, 0])
    torch.testing.assert_close((value - nowhere).detach(), -0.5 * quadratic)
    for ours, theirs in zip(torch.autograd.grad(value, logs), truth, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.05)


def test_it_climbs_and_takes_the_mean_of_its_last_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is climbed is the evidence of the rays at a mode that is kept and the prior, the noise a tuned one."""
    monkeypatch.setattr(Matrix, "layout", LAYOUT)
    rays, y, fitted = Rays(normal(ROWS, H * W, seed=3)), normal(ROWS, seed=4), Gaussian(4.0)
    posterior = ImagePosterior(Observed(IMAGE, rays, y, fitted), Isotropic(1.0), Gaussian(8.0), CG())
    start = MaternFilters.of(LAYOUT, 1.0, 0.5, torch.ones(0).double())
    recipe = TVPredCP(steps=2 * WINDOW, rate=0.02, tolerance=1e-9, probes=40, samples=40, rtol=1e-6)
    mode, rows = recipe._mode(posterior, start), rays.matrix @ J

    def climbed(prior: MaternFilters) -> float:
        lengths = prior.lengths.log().requires_grad_()
        known = replace(prior, lengths=lengths.exp())
        c = torch.eye(ROWS).double() + 8.0 * rows @ covariance(known) @ rows.mT
        value = -0.5 * prior.inverse(mode).square().sum() - 0.5 * torch.logdet(c) + log_prior(closed(known), lengths)
        return float(value)

    with pytest.warns(ConvergenceWarning, match="still moved"):
        found = recipe.fit(posterior)
    image = found.observed.image
    assert isinstance(image, Filtered)
    assert climbed(image.filters) > climbed(start) + 0.5
    steps = torch.tensor([step.prior_precision for step in found.trace]).double()
    torch.testing.assert_close(image.filters.precisions, steps[-WINDOW:].log().mean(0).exp())


def test_rows_that_are_kept_are_those_of_the_filters_coordinates() -> None:
    rays = Rays(normal(ROWS, H * W, seed=3))
    found = Observed(IMAGE, rays, normal(ROWS, seed=4)).filtered(PRIOR)
    torch.testing.assert_close(found.features, rays.matrix @ J @ PRIOR.forward(torch.eye(D).double()))


def test_it_has_settled_where_windows_agree_on_precisions_and_correlations() -> None:
    still = torch.tensor([[0.0, 2.0], [0.5, -3.0]]).double()
    assert movement([still] * (2 * WINDOW - 1)) == math.inf
    moved = still + torch.tensor([[0.1, 0.0], [0.0, 0.5]]).double()  # ψ from e^-3 to e^-2.5: no correlation in either
    assert movement([still] * WINDOW + [moved] * WINDOW) == pytest.approx(0.1)
    longer = still + torch.tensor([[0.0, 0.0], [0.5, 0.0]]).double()
    change = math.exp(-math.exp(-1.0)) - math.exp(-math.exp(-0.5))
    assert movement([still] * WINDOW + [longer] * WINDOW) == pytest.approx(change)


def test_layers_without_taps_have_precisions_alone_and_need_others_beside_them() -> None:
    flat = Layout(("mlp.0.weight",), ((3, 2),))
    prior = MaternFilters.of(flat, 4.0, 0.5, torch.ones(0).double())
    assert prior.smooth == (False,)
    torch.testing.assert_close(prior.forward(torch.eye(6).double()), 0.5 * torch.eye(6).double())
    posterior = ImagePosterior(
        Observed(IMAGE, Rays(normal(ROWS, H * W)), normal(ROWS)), Isotropic(1.0), Gaussian(), CG()
    )
    with refused(ConfigError, "filters of more than one tap"):
        TVPredCP().fit(posterior)


def test_steps_too_few_for_two_windows_are_refused() -> None:
    with refused(ConfigError, "steps of at least 40"):
        TVPredCP(steps=2 * WINDOW - 1)


def test_a_posterior_with_correlated_filters_is_climbed_to(generator: torch.Generator) -> None:
    net, z = UNet(scales=2, channels=4, generator=generator).double(), normal(1, 1, 4, 6)
    rays = Rays(normal(ROWS, 24, seed=5))
    start = ImagePosterior.of(net, z, rays, normal(ROWS, seed=6), noise_std=0.5, samples=400)
    found = TVPredCP(steps=2 * WINDOW, refresh=WINDOW, probes=2, samples=2).fit(start)
    image = found.observed.image
    assert isinstance(image, Filtered) and found.observed.layout == start.observed.layout
    assert not bool((image.filters.lengths[:2] == 0.5).any() or (image.filters.precisions == 1.0).any())
    j = single_chunk(start.observed.image, 1).pull(torch.eye(24).double().view(-1, 1, 4, 6, 1)).mT
    root = image.filters.forward(torch.eye(len(image.weights)).double())
    covariance = torch.linalg.inv(4.0 * (rays.matrix @ j).mT @ (rays.matrix @ j) + torch.linalg.inv(root @ root.mT))
    truth = (j @ covariance @ j.mT).diagonal().sqrt().view(4, 6)
    assert float((found.std / truth - 1).abs().max()) < 4.5 / math.sqrt(2 * 400)
    torch.testing.assert_close(found.mean, start.mean)
