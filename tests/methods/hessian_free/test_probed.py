"""A covariance from exact products with random signs: no network."""

from __future__ import annotations

import torch
from torch import Tensor

from lapwing.ground.probes import rademacher
from lapwing.methods.hessian_free.probed import ProbedCovariance, absolute, nearest_semidefinite, nystrom_factor
from tests.posterior_cases import normal


def covariance(size: int = 30) -> Tensor:
    """A smooth kernel whose eigenvalues fall slowly enough for a rest to be left."""
    x = torch.linspace(0, 1, size, dtype=torch.float64)
    return torch.exp(-(x[:, None] - x).abs() / 0.3) * (1 + x[:, None]) * (1 + x)


def probed(c: Tensor, probes: int, residual: int, seed: int, shape: tuple[int, ...] = (-1, 1)) -> ProbedCovariance:
    generator = torch.Generator().manual_seed(seed)
    omega = rademacher((probes + residual, len(c)), like=c, generator=generator)
    parts = (part.view(len(omega), *shape) for part in (omega, omega @ c))
    return ProbedCovariance.of(*parts, probes, 0.0)


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    c = covariance()
    covered, means = [], []
    for seed in range(100):
        found = probed(c, 6, 10, seed).variances
        low, high = found.interval(0.95)
        truth = c.diagonal()[:, None]
        covered.append(((low <= truth) & (truth <= high)).double().mean())
        means.append(found.value[:, 0])
        assert float((found.stderr / truth).median()) > 0.01
    rate = torch.stack(covered)
    assert abs(float(rate.mean()) - 0.95) < 3 * float(rate.std()) / 10 + 0.01
    values = torch.stack(means)
    errors = (values.mean(0) - c.diagonal()).abs() / (values.std(0) / 10)
    assert float(errors.max()) < 4.5 and float(errors.mean()) < 1.2


def test_says_what_share_the_probes_leave_out() -> None:
    c = covariance()
    for probes in (2, 6, 30):
        found = probed(c, probes, 400, 0)
        rest = c - found.factor.view(len(c), -1) @ found.factor.view(len(c), -1).mT
        truth = float(rest.trace() / c.trace())
        assert abs(found.left_out - truth) < 0.1 * truth + 1e-9
    assert probed(c, 2, 400, 0).left_out > 0.1


def test_blocks_of_the_rest_are_unbiased() -> None:
    c = covariance(12)
    found = [probed(c, 2, 40, seed, (4, 3)) for seed in range(60)]
    blocks = torch.stack([each.factor @ each.factor.mT + each.residual for each in found])
    truth = torch.stack([c[3 * i : 3 * i + 3, 3 * i : 3 * i + 3] for i in range(4)])
    errors = (blocks.mean(0) - truth) / (blocks.std(0) / 60**0.5)
    assert float(errors.abs().max()) < 4.5
    torch.testing.assert_close(blocks, blocks.mT)


def test_the_factor_never_exceeds_the_matrix_and_is_exact_with_enough_probes() -> None:
    c = covariance(10)
    omega = rademacher((4, 10), like=c, generator=torch.Generator().manual_seed(0))
    factor = nystrom_factor(omega, omega @ c, 0.0)
    assert float(torch.linalg.eigvalsh(c - factor @ factor.mT)[0]) > -1e-12
    torch.testing.assert_close(factor @ (factor.mT @ omega.mT), c @ omega.mT)
    whole = normal(14, 10)
    factor = nystrom_factor(whole, whole @ c, 0.0)
    torch.testing.assert_close(factor @ factor.mT, c)


def test_what_is_smaller_than_the_noise_is_left_out() -> None:
    low = torch.diag(torch.tensor([1.0, 1e-3, 1e-6, 0.0], dtype=torch.float64))
    eye = torch.eye(4, dtype=torch.float64)
    assert [nystrom_factor(eye, low, noise).shape[1] for noise in (0.0, 1e-4, 1e-2)] == [3, 2, 1]


def test_noise_in_the_products_shows_as_asymmetry_and_is_left_out() -> None:
    low = torch.diag(torch.tensor([1.0, 1e-2, 1e-5, 1e-6], dtype=torch.float64))
    noisy = low + 1e-4 * torch.triu(torch.ones_like(low), 1)
    assert nystrom_factor(torch.eye(4, dtype=torch.float64), noisy, 0.0).shape[1] == 2


def test_eigenvalues_of_blocks() -> None:
    vectors = torch.linalg.qr(normal(3, 3)).Q
    values = torch.tensor([-2.0, 0.5, 3.0], dtype=torch.float64)
    block = (vectors * values) @ vectors.mT
    torch.testing.assert_close(nearest_semidefinite(block), (vectors * values.clamp(min=0)) @ vectors.mT)
    torch.testing.assert_close(absolute(block), (vectors * values.abs()) @ vectors.mT)
    turned = normal(3, 3, seed=1)
    torch.testing.assert_close(absolute(block + turned - turned.mT), absolute(block))


def test_some_of_the_points() -> None:
    found = probed(covariance(12), 3, 4, 0, (4, 3))
    part = found.take(torch.tensor([2, 0]))
    torch.testing.assert_close(part.blocks, found.blocks[[2, 0]])
    torch.testing.assert_close(part.variances.stderr, found.variances.stderr[[2, 0]])
    assert bool((torch.linalg.eigvalsh(found.blocks) > -1e-12).all())
