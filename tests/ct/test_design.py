"""What an angle would tell is the drop of the posterior's log determinant; blocks, draws and greed are exact."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.ct.design import Design
from lapwing.ct.dip import DeepImagePrior
from lapwing.ct.image import ImagePosterior
from lapwing.ct.observed import Observed, linear_image
from lapwing.ct.pixels import pixel_prior
from lapwing.ground.errors import ConfigError, ConvergenceWarning
from lapwing.linalg import Diagonal
from lapwing.linear.model import LinearModel, Matrix
from lapwing.linear.solvers import CG
from tests.checker import unchecked
from tests.linear_models import Rays
from tests.posterior_cases import normal, refused

ANGLES, BINS, H, W, D, STD = 6, 2, 2, 4, 5, 0.4
T = normal(ANGLES * BINS, H * W)
J, A = normal(H * W, D, seed=1), torch.linspace(0.5, 3.0, D, dtype=torch.float64)
K = J @ torch.diag(1 / A) @ J.mT
IMAGE = Matrix(J.view(1, H, W, 1, D))


def design(chosen: tuple[int, ...], *, bins: int = BINS, samples: int = 7) -> Design:
    return Design.of(
        IMAGE,
        Diagonal(A),
        Rays(T),
        ANGLES * BINS // bins,
        chosen,
        noise_std=STD,
        samples=samples,
        generator=torch.Generator().manual_seed(2),
    )


def exactly(given: Design) -> Design:
    """The design with draws whose covariance, and that of their noise, is exactly the truth."""
    m = D + len(T)
    units = m**0.5 * torch.eye(m, dtype=torch.float64)
    return replace(given, drawn=T @ (J @ (units[:D] / A.sqrt()[:, None])), noise=units[D:])


def left(rays: Tensor) -> Tensor:
    """The covariance of the image, given some rays."""
    seen = T[rays]
    return K - K @ seen.mT @ torch.linalg.solve(seen @ K @ seen.mT + STD**2 * torch.eye(len(rays)), seen @ K)


@pytest.mark.parametrize("chosen", [(), (4,), (3, 0)])
def test_an_angle_tells_what_the_posterior_loses(chosen: tuple[int, ...]) -> None:
    """Equation 7.15, halved: nats; and the trace of what it would measure."""
    found = exactly(design(chosen))
    eig, ese = found.scores("eig"), found.scores("ese")
    rays = found.rays(chosen)
    weights = J.mT @ T.mT

    def precision(more: Tensor) -> Tensor:
        return torch.logdet(torch.diag(A) + weights[:, more] @ weights[:, more].mT / STD**2)

    for angle in set(range(ANGLES)) - set(chosen):
        new = found.rays([angle])
        drop = 0.5 * (precision(torch.cat([rays, new])) - precision(rays))
        torch.testing.assert_close(eig[angle], drop)
        torch.testing.assert_close(ese[angle], (T[new] @ left(rays) @ T[new].mT).trace())
    assert all(eig[angle] == ese[angle] == -torch.inf for angle in chosen)


def test_for_one_ray_an_angle_both_criteria_have_one_order() -> None:
    found = exactly(design((2,), bins=1))
    assert found.angles == 12 and found.bins == 1
    assert found.scores("eig").argsort().tolist() == found.scores("ese").argsort().tolist()


def test_the_covariance_of_the_rays_grown_by_blocks_is_that_made_at_once() -> None:
    found = design((4,)).measured(1)
    rays = found.rays((4, 1))
    torch.testing.assert_close(found.cross, T @ K @ T[rays].mT)
    assert found.chosen == (4, 1) and torch.equal(found.drawn, design((4,)).drawn)


def test_drawn_scores_come_to_the_exact_ones() -> None:
    m = 20_000
    for criterion in ("ese", "eig"):
        few, truth = design((3,), samples=m).scores(criterion), exactly(design((3,))).scores(criterion)
        there = torch.arange(ANGLES) != 3
        torch.testing.assert_close(few[there], truth[there], rtol=6 * (2 / m) ** 0.5, atol=0)


def test_proposals_are_greedy() -> None:
    start, found = exactly(design((4,))), list[int]()
    proposed = start.propose(3, "eig")
    for _ in range(3):
        found.append(int(start.scores("eig").argmax()))
        start = exactly(start.measured(found[-1]))
    assert proposed == found and 4 not in found and len(set(found)) == 3


def test_a_design_that_begins_with_a_posterior_has_its_angles_behind_it() -> None:
    observed = Observed(IMAGE, Rays(T[: 2 * BINS]), normal(2 * BINS), lw.Gaussian(4 * STD**-2))
    posterior = ImagePosterior(observed, lw.DiagonalPrior(A), lw.Gaussian(STD**-2), CG(rtol=1e-12))
    found = Design.after(posterior, Rays(T), ANGLES, [0, 1], samples=7)
    seen, m = found.rays([0, 1]), D + len(T)
    root = torch.linalg.eigh(left(seen))
    units = m**0.5 * torch.eye(m, dtype=torch.float64)
    drawn = T @ (root.eigenvectors * root.eigenvalues.clamp_min(0).sqrt()) @ units[: H * W]
    known = replace(found, drawn=drawn, noise=units[-len(T) :])
    assert found.noise_std == pytest.approx(STD) and found.done == (0, 1) and found.drawn.shape == (len(T), 7)
    for more in ((), (4,)):
        one, other = known, exactly(design((0, 1)))
        for angle in more:
            one, other = one.measured(angle), other.measured(angle)
        for criterion in ("ese", "eig"):
            torch.testing.assert_close(one.scores(criterion), other.scores(criterion))
    many = Design.after(posterior, Rays(T), ANGLES, [0, 1], samples=20_000)
    torch.testing.assert_close(many.scores()[2:], known.scores()[2:], rtol=6 * (2 / 20_000) ** 0.5, atol=0)
    with refused(ConfigError, "measured angles below 6"):
        Design.after(posterior, Rays(T), ANGLES, [0, 6])
    for others in ([], [1], [0, 0], [0, 1, 2]):
        with refused(ConfigError, "whose rays the posterior has, 4 of them"):
            Design.after(posterior, Rays(T), ANGLES, others)


def test_the_prior_may_be_of_pixels() -> None:
    found = Design.of(
        pixel_prior((H, W), 2.0, like=normal(1)), lw.Isotropic(1.0), Rays(T), ANGLES, [1],
        noise_std=STD, samples=5,
    )  # fmt: skip
    assert found.propose(2)[0] != 1
    with refused(ConfigError, "a g-prior that knows the curvature"):
        Design.of(IMAGE, lw.GPrior(), Rays(T), ANGLES, [1], noise_std=STD)


class Product(torch.nn.Module):
    """An image whose features change with the weights."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(weights.clone())

    def forward(self, z: Tensor) -> Tensor:
        return z * torch.outer(self.weights[:H], self.weights[H:])


def test_the_design_of_a_linear_model_knows_nothing_of_what_was_measured_and_that_of_a_network_does() -> None:
    z, weights = torch.ones(1, 1, H, W).double(), normal(H + W, seed=3)
    first, second = (T[:BINS] @ normal(H * W, seed=seed) for seed in (5, 6))

    def scores(image: LinearModel, y: Tensor) -> Tensor:
        observed = Observed(image, Rays(T[:BINS]), y, lw.Gaussian(STD**-2))
        posterior = ImagePosterior(observed, lw.Isotropic(1.0), lw.Gaussian(STD**-2), CG())
        generator = torch.Generator().manual_seed(2)
        return Design.after(posterior, Rays(T), ANGLES, [0], samples=50, generator=generator).scores("eig")

    assert torch.equal(scores(IMAGE, first), scores(IMAGE, second))
    prior = DeepImagePrior(tv=1e-3, steps=30, patience=30, rate=0.1, held_out=0.5)
    with pytest.warns(ConvergenceWarning):
        fits = [prior.fit(Product(weights), z, Rays(T[:BINS]), y, noise_std=STD) for y in (first, second)]
    one, other = (scores(linear_image(fit.network, z), y) for fit, y in zip(fits, (first, second), strict=True))
    assert not torch.allclose(one, other, rtol=0.05)


def test_what_makes_no_sense_is_a_sentence() -> None:
    with refused(ConfigError, "below 6 that is not measured yet"):
        design((4,)).measured(4)
    with refused(ConfigError, "count of at most 5"):
        design((4,)).propose(6)
    with refused(ConfigError, "rows of 5 angles"):
        Design.of(IMAGE, Diagonal(A), Rays(T), 5, [], noise_std=STD)
    with unchecked(), refused(ConfigError, "criterion"):
        design(()).scores("both")  # type: ignore[arg-type]
