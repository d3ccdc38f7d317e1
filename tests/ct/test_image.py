"""The posterior over images is that of the dense Gaussian model, in either of its forms."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.ct.image import DRAWS, ImagePosterior, image_prior, scaled
from lapwing.ct.observed import Observed, linear_image
from lapwing.ct.unet import UNet
from lapwing.ground.errors import ConfigError, ConvergenceWarning, DataError, ShapeError
from lapwing.linalg import Diagonal
from lapwing.linear.model import Matrix
from lapwing.linear.perturbation import Perturbation
from lapwing.linear.solvers import CG, SGD
from lapwing.structures import LowRank
from tests.checker import unchecked
from tests.linear_models import Rays
from tests.posterior_cases import normal, refused

H, W, D, ROWS, B = 3, 4, 6, 9, 2.5
PIXELS = H * W
J, T = normal(PIXELS, D), normal(ROWS, PIXELS, seed=1) / 3
F = T @ J
WEIGHTS, Y = normal(D, seed=2), normal(ROWS, seed=3)
A = torch.linspace(0.5, 3.0, D, dtype=torch.float64)
PRECISION = B * F.mT @ F + torch.diag(A)


def posterior(
    prior: lw.GPrior | lw.DiagonalPrior | None = None, *, samples: int = 4, memory: int = 0
) -> ImagePosterior:
    image = Matrix(J.view(1, H, W, 1, D), at_weights=WEIGHTS)
    observed = Observed(image, Rays(T), Y, lw.Gaussian(B), memory=memory)
    known = scaled(lw.DiagonalPrior(A) if prior is None else prior, observed, torch.Generator().manual_seed(4))
    return ImagePosterior(observed, known, lw.Gaussian(B), CG(rtol=1e-12), samples)


@pytest.mark.parametrize("memory", [0, 2**20])
def test_the_covariance_of_images_is_both_of_its_forms(memory: int) -> None:
    """Equation 7.6 with b in place of its b², and the form with the kernel, 7.5."""
    primal = J @ torch.linalg.inv(PRECISION) @ J.mT
    k = J @ torch.diag(1 / A) @ J.mT
    cross = T @ k
    dual = k - cross.mT @ torch.linalg.solve(cross @ T.mT + torch.eye(ROWS) / B, cross)
    torch.testing.assert_close(primal, dual)
    found = posterior(memory=memory)
    functionals = torch.cat([torch.eye(PIXELS), normal(2, PIXELS)]).double()
    interval = found.functional(functionals.view(-1, H, W))
    torch.testing.assert_close(interval.std.square(), (functionals @ dual @ functionals.mT).diagonal())
    torch.testing.assert_close(interval.mean, functionals @ J @ WEIGHTS)
    inside = torch.special.ndtr((interval.high - interval.mean) / interval.std) * 2 - 1
    torch.testing.assert_close(inside, torch.full_like(inside, 0.95))
    torch.testing.assert_close(interval.low + interval.high, 2 * interval.mean)


def test_the_mean_of_the_linear_model_is_its_mode_in_both_forms() -> None:
    """Equation 7.11, whose offset is 0 for a linear image."""
    dual = torch.diag(1 / A) @ F.mT @ torch.linalg.solve(F @ torch.diag(1 / A) @ F.mT + torch.eye(ROWS) / B, Y)
    primal = torch.linalg.solve(PRECISION, B * F.mT @ Y)
    torch.testing.assert_close(primal, dual)
    torch.testing.assert_close(posterior().linear_mean(), (J @ dual).view(H, W))
    torch.testing.assert_close(posterior().mean, (J @ WEIGHTS).view(H, W))


def test_draws_have_the_covariance_of_the_posterior_and_are_those_of_the_dual_algorithm() -> None:
    """Algorithm 6, its sample update without the leading T φ: the map from noise to a draw, column by column."""
    found, noise = posterior(), torch.eye(ROWS + D).double()
    problem = found.problem
    draws = CG(rtol=1e-13).solve(
        problem, Perturbation(problem.root @ noise[:ROWS], noise[ROWS:]).right_hand_side(problem)
    )
    torch.testing.assert_close(draws.value @ draws.value.mT, torch.linalg.inv(PRECISION))
    w0 = noise[ROWS:] / A.sqrt()[:, None]
    c = torch.linalg.solve(F @ torch.diag(1 / A) @ F.mT + torch.eye(ROWS) / B, F @ w0 - noise[:ROWS] / B**0.5)
    torch.testing.assert_close(draws.value, w0 - torch.diag(1 / A) @ F.mT @ c)


def test_standard_deviations_and_draws_are_those_of_the_posterior() -> None:
    found, k = posterior(samples=4000), 4000
    truth = (J @ torch.linalg.inv(PRECISION) @ J.mT).diagonal().sqrt().view(H, W)
    assert float((found.std / truth - 1).abs().max()) < 4 / math.sqrt(2 * k)
    assert torch.equal(found.std, posterior(samples=4000).std)
    drawn = found.sample(3, generator=torch.Generator().manual_seed(1))
    other = found.drawn(3, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(drawn, found.mean + other.view(3, H, W))
    assert not torch.equal(other, found.deviations[:3])


def test_the_scale_of_the_g_prior_is_exact_or_nearly() -> None:
    exact = posterior(lw.GPrior(0.7))
    torch.testing.assert_close(exact.problem.prior.values, 0.7 * B * F.square().sum(0))
    assert float((exact.problem.in_prior_units().dense() * 0.7).trace()) == pytest.approx(D)
    by_noise = posterior(lw.GPrior(0.7, samples=8000)).problem.prior.values
    assert float((by_noise / exact.problem.prior.values - 1).abs().max()) < 5 * math.sqrt(2 / 8000)


def test_the_scale_of_the_prior_of_an_image_is_what_weights_do_to_it_whatever_the_rays_see() -> None:
    """Within 4.5 standard errors of its draws."""
    image = Matrix(J.view(1, H, W, 1, D), at_weights=WEIGHTS)
    priors = [
        image_prior(Observed(image, Rays(rays), Y, lw.Gaussian(B)), torch.Generator().manual_seed(5))
        for rays in (T, 0 * T)
    ]
    (found, blind) = (prior.scale for prior in priors)
    assert found is not None and blind is not None and torch.equal(found, blind)
    truth = J.square().sum(0) * (D / (J @ WEIGHTS).square().sum())
    assert bool(((found / truth - 1).abs() < 4.5 * (2 / DRAWS) ** 0.5).all())


def test_the_prior_of_an_image_draws_images_as_large_as_the_network_s_and_is_tuned_in_any_unit() -> None:
    """``E |J w|² = Σ_i (JᵀJ)_ii / A_i``; the scale of 256 draws is off by 9 % a weight."""
    tuned = list[float]()
    for unit in (1.0, 1e-9, 300.0):
        image, noise = Matrix(unit * J.view(1, H, W, 1, D), at_weights=WEIGHTS), lw.Gaussian(B / unit**2)
        rays = Observed(image, Rays(T), unit * Y, noise)
        prior = image_prior(rays, torch.Generator().manual_seed(5))
        assert prior.precision == 1.0 and prior.scale is not None
        drawn = ((unit * J).square().sum(0) / prior.scale).sum()
        assert float(drawn) == pytest.approx(float((unit * J @ WEIGHTS).square().sum()), rel=0.1)
        tuned.append(float(lw.tune(ImagePosterior(rays, prior, noise, CG())).prior_precisions))
    assert tuned == pytest.approx([tuned[0]] * 3, rel=1e-6)


def test_tuning_leaves_the_noise_as_it_is_and_the_steps_before_in_the_trace() -> None:
    once = lw.tune(posterior(), lw.EM(steps=2, noise=False))
    again = lw.tune(once)
    assert again.likelihood == once.likelihood and again.trace[: len(once.trace)] == once.trace
    assert len(again.trace) > len(once.trace) > 0


def test_a_low_rank_preconditioner_is_exact_from_the_rank_on_and_iterations_fall_with_it() -> None:
    observed = Observed(Matrix(normal(1, 20, 30)), Rays(normal(12, 20, seed=1) ** 3), normal(12), lw.Gaussian(50.0))
    problem = ImagePosterior(observed, lw.DiagonalPrior(1.0), lw.Gaussian(50.0), CG()).problem
    truth = 50 * observed.features.mT @ observed.features + torch.eye(30)
    torch.testing.assert_close(LowRank(12).approximate(problem).dense(), truth, rtol=1e-8, atol=1e-6)
    b = normal(30, 1, seed=5)
    iterations = [
        CG(rtol=1e-8, preconditioner=None if rank == 0 else LowRank(rank)).solve(problem, b).iterations
        for rank in (0, 4, 12)
    ]
    assert iterations[0] > iterations[1] > iterations[2] and iterations[2] <= 2


def test_expectation_maximisation_ends_where_the_exact_evidence_is_largest() -> None:
    found = posterior(lw.GPrior(30.0), samples=4)
    tuned = lw.tune(found, lw.EM(samples=20_000, noise=False, tolerance=1e-3))
    s = B * F.square().sum(0)
    k = F @ torch.diag(1 / s) @ F.mT

    grid = torch.linspace(-6, 6, 2001, dtype=torch.float64).exp()
    covariances = k / grid[:, None, None] + torch.eye(ROWS) / B
    evidences = torch.distributions.MultivariateNormal(torch.zeros(ROWS).double(), covariances).log_prob(Y)
    best = grid[evidences.argmax()]
    assert isinstance(tuned, ImagePosterior) and len(tuned.trace) > 1
    precision = tuned.prior_precisions.item()
    assert precision == pytest.approx(float(best), rel=0.02)
    weights = torch.diag(1 / (precision * s)) @ F.mT @ torch.linalg.solve(k / precision + torch.eye(ROWS) / B, Y)
    last = tuned.trace[-1]
    assert last.mode_norms is not None and last.mode_norms[0] == pytest.approx(float(s @ weights.square()), rel=0.02)
    torch.testing.assert_close(tuned.problem.prior.values, precision * s)
    noisy = lw.tune(found, lw.EM(samples=64))
    assert noisy.noise_scale != 1.0 and noisy.problem.scale == noisy.noise_scale


@pytest.mark.parametrize(("images", "pushes", "pulls"), [(False, 1, ROWS), (True, 1 + D, 0)])
def test_the_rows_are_made_once_however_often_it_is_tuned(images: bool, pushes: int, pulls: int) -> None:
    """By the rays one by one, or by J where there is room for it, and it has fewer columns."""
    seen: dict[str, int] = {"push": 0, "pull": 0}

    class Counted(Rays):
        def push(self, v: Tensor) -> Tensor:
            seen["push"] += v.shape[1]
            return super().push(v)

        def pull(self, u: Tensor) -> Tensor:
            seen["pull"] += u.shape[1]
            return super().pull(u)

    memory = max(H * W if images else 0, ROWS) * D * 8
    observed = Observed(Matrix(J.view(1, H, W, 1, D)), Counted(T), Y, lw.Gaussian(B), memory=memory)
    found = ImagePosterior(observed, lw.DiagonalPrior(A), lw.Gaussian(B), CG(rtol=1e-12), 4)
    assert lw.tune(found, lw.EM(samples=2, steps=3)).std.shape == (H, W)
    assert seen == {"push": pushes, "pull": pulls}
    torch.testing.assert_close(observed.features, T @ J)
    columns = normal(D, 2, seed=9)
    torch.testing.assert_close(observed.image_chunk(2).push(columns).flatten(1).mT, J @ columns)


def test_descent_draws_what_conjugate_gradients_draw() -> None:
    found = posterior(lw.GPrior(0.7))
    observed = Observed(found.observed.image, Rays(T), Y, lw.Gaussian(B), examples=2)
    descended = ImagePosterior(observed, found.prior, found.likelihood, SGD(epochs=2000, batch=9, rtol=1e-6), 4)
    torch.testing.assert_close(descended.deviations, found.deviations, rtol=1e-4, atol=1e-5)


def test_descent_that_ends_early_tunes_with_a_warning_and_not_an_error() -> None:
    """Short steps from draws of a wide prior leave a residual above that of 0."""
    rays = Observed(Matrix(J.view(1, H, W, 1, D)), Rays(T), Y, lw.Gaussian(B), memory=0)
    start = ImagePosterior(rays, lw.DiagonalPrior(1e-6), lw.Gaussian(B), SGD(epochs=1, batch=9, step=1e-12), 2)
    with pytest.warns(ConvergenceWarning, match=r"stopped after 1 steps .*e\+0"):
        tuned = lw.tune(start, lw.EM(samples=2, steps=1, noise=False))
    assert bool(tuned.prior_precisions.isfinite().all())


def test_a_network_in_and_error_bars_out_the_network_as_it_was(generator: torch.Generator) -> None:
    net, z = UNet(scales=1, channels=4, generator=generator), torch.randn(1, 1, 5, 3, generator=generator)
    before = [p.clone() for p in net.parameters()]
    rays = Rays(torch.randn(7, 15, generator=generator))
    found = ImagePosterior.of(net, z, rays, torch.zeros(7), noise_std=0.5, samples=5)
    assert found.std.shape == (5, 3) and bool((found.std > 0).all())
    torch.testing.assert_close(found.mean, net(z)[0, 0].detach())
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    assert found.solver.solve(found.problem, torch.ones(len(found.observed.weights))).iterations <= 3
    assert found.likelihood == lw.Gaussian(4.0) and isinstance(found.prior, lw.GPrior)
    of_image = image_prior(found.observed, torch.Generator().manual_seed(1))
    assert found.prior.scale is not None and of_image.scale is not None
    assert torch.equal(found.prior.scale, of_image.scale)


def test_totals_are_those_of_the_images_fit() -> None:
    totals, rest = posterior().totals, Y - F @ WEIGHTS
    assert totals.misfit == pytest.approx(B * float(rest.square().sum()))
    truth = -torch.distributions.Normal(torch.zeros(()).double(), B**-0.5).log_prob(rest).sum()
    assert totals.nll == pytest.approx(float(truth)) and totals.observations == ROWS
    assert isinstance(posterior().problem.prior, Diagonal)


def test_what_makes_no_sense_is_a_sentence() -> None:
    with unchecked(), refused(ShapeError, "functionals of shape"):
        posterior().functional(torch.ones(1, W, H).double())
    with refused(ShapeError, "functionals of shape"):
        posterior().functional(torch.ones(0, H, W).double())
    with refused(DataError, "measurements"):
        ImagePosterior.of(
            UNet(scales=1), torch.ones(1, 1, 2, 2), Rays(torch.ones(1, 4)), torch.tensor([torch.nan]), noise_std=1.0
        )
    with refused(ConfigError, "level"):
        posterior().functional(torch.ones(1, H, W).double(), level=1.5)
    with refused(ConfigError, "the method"):
        lw.tune(posterior(), lw.EvidenceGradient())


def test_filters_are_uncertain_gains_and_biases_are_not(generator: torch.Generator) -> None:
    net = UNet(scales=2, channels=4, generator=generator)
    image = linear_image(net, torch.randn(1, 1, 4, 6, generator=generator))
    filters = {name: value for name, value in net.named_parameters() if value.ndim > 1}
    assert image.layout.names == tuple(filters) and len(filters) < len(list(net.parameters()))
    assert torch.equal(image.weights, torch.cat([value.detach().flatten() for value in filters.values()]))
    flat = linear_image(torch.nn.GroupNorm(1, 1), torch.randn(1, 1, 4, 6, generator=generator))
    assert flat.layout.names == ("weight", "bias")  # where there is nothing else
