"""Quasi-random averages are near the truth and smooth; in one dimension the quadrature is exact."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import expit, log_ndtr
from torch import Tensor

from lapwing.ground.errors import NumericalError, UnsupportedError
from lapwing.linalg.contrasts import contrasts
from lapwing.predictive import Moments, expected_sigmoid, monte_carlo, quasi_monte_carlo
from lapwing.predictive.quadrature import sobol_normals


def random_moments(n: int = 5, c: int = 4, scale: float = 1.0) -> Moments:
    factor = scale * torch.randn(n, c, c + 1, dtype=torch.float64)
    return Moments(torch.randn(n, c, dtype=torch.float64), factor @ factor.mT)


def test_points_are_normal_and_leave_the_global_generator_alone() -> None:
    sobol_normals.cache_clear()
    before = torch.get_rng_state()
    with torch.inference_mode():
        points = sobol_normals(512, 9)
    assert torch.equal(torch.get_rng_state(), before) and not points.is_inference()
    assert bool(points.isfinite().all())
    torch.testing.assert_close(points.mean(1), torch.zeros(9).double(), rtol=0, atol=2e-3)
    torch.testing.assert_close(points @ points.mT / 512, torch.eye(9).double(), rtol=0, atol=0.03)
    with pytest.raises(UnsupportedError, match="at most 21,201 independent outputs"):
        sobol_normals(1, 21_202)


@pytest.mark.parametrize("c, scale", [(3, 0.5), (7, 2.0)])
def test_they_average_softmax_nearer_than_as_many_random_draws(c: int, scale: float) -> None:
    moments = random_moments(c=c, scale=scale)
    exact, stderr = monte_carlo(moments, 400_000, generator=torch.Generator().manual_seed(1))
    found = quasi_monte_carlo(moments)
    error = (found - exact).square().mean().sqrt()
    random = stderr.square().mean().sqrt() * (400_000 / 512) ** 0.5
    assert float(error) < 0.35 * float(random)
    torch.testing.assert_close(found.sum(-1), torch.ones(5).double())
    assert torch.equal(quasi_monte_carlo(moments), found)
    torch.testing.assert_close(quasi_monte_carlo(moments, max_bytes=1), found)
    contrast = contrasts(c)
    torch.testing.assert_close(contrast.mT @ contrast, torch.eye(c - 1).double())
    torch.testing.assert_close(contrast.sum(0), torch.zeros(c - 1).double())


def test_two_classes_are_exact_and_one_is_certain() -> None:
    moments = random_moments(n=6, c=2, scale=3.0)
    across = moments.covariance
    spread = across[:, 0, 0] + across[:, 1, 1] - 2 * across[:, 0, 1]
    gap = moments.mean[:, 0] - moments.mean[:, 1]
    both = torch.stack([expected_sigmoid(gap, spread), expected_sigmoid(-gap, spread)], -1)
    torch.testing.assert_close(quasi_monte_carlo(moments), both, rtol=1e-12, atol=0)
    assert quasi_monte_carlo(random_moments(c=1)).tolist() == [[1.0]] * 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_extreme_logits_singular_covariances_and_shifts(dtype: torch.dtype) -> None:
    mean = torch.tensor([[1e4, 0.0, -1e4], [1.0, 2.0, 3.0]], dtype=dtype)
    ones = torch.ones(2, 3, 3, dtype=dtype)
    shift = min(512.0, 0.01 / torch.finfo(dtype).eps)  # what the rounding of which does not hide the rest
    for covariance in (0 * ones, shift * ones, torch.diag(torch.tensor([0.0, 0.0, 1e-12])).to(dtype).expand(2, 3, 3)):
        probs = quasi_monte_carlo(Moments(mean, covariance))
        assert probs.dtype == dtype
        torch.testing.assert_close(probs, torch.softmax(mean, -1), rtol=0.02, atol=1e-4)
    huge = quasi_monte_carlo(Moments(mean, 1e8 * torch.eye(3).to(dtype).expand(2, 3, 3)))
    assert bool(huge.isfinite().all())
    torch.testing.assert_close(huge[1], torch.full((3,), 1 / 3, dtype=dtype), rtol=0, atol=0.01)


def test_a_shift_that_all_logits_share_plays_no_part() -> None:
    moments = random_moments(c=5)
    rows = torch.randn(5, 5, 1, dtype=torch.float64)
    shifted = Moments(moments.mean + 7.0, moments.covariance + rows + rows.mT + 1e4)
    torch.testing.assert_close(quasi_monte_carlo(shifted), quasi_monte_carlo(moments), rtol=0, atol=1e-9)


def test_it_is_differentiable_and_smooth_where_eigenvalues_cross() -> None:
    mean, (first, second) = torch.randn(1, 4, dtype=torch.float64), random_moments(n=2, c=4).covariance
    eye = torch.eye(4, dtype=torch.float64)

    def along(precision: Tensor) -> Tensor:
        return quasi_monte_carlo(Moments(mean, torch.linalg.inv(precision * eye + first)[None]), points=64)

    assert torch.autograd.gradcheck(along, torch.tensor(0.7, dtype=torch.float64, requires_grad=True))
    # between two covariances with other eigenvectors there is no jump: halving the step halves the changes
    path = [torch.lerp(first, second, t)[None] for t in torch.linspace(0, 1, 401, dtype=torch.float64)]
    probs = torch.cat([quasi_monte_carlo(Moments(mean, covariance), points=64) for covariance in path])
    fine, coarse = ((probs[step:] - probs[:-step]).abs().max() for step in (1, 2))
    assert 1.8 < float(coarse / fine) <= 2.0


def test_what_is_no_covariance_is_refused() -> None:
    indefinite = torch.ones(1, 3, 3, dtype=torch.float64) - 0.1 * torch.eye(3, dtype=torch.float64)
    with pytest.raises(NumericalError, match="smallest eigenvalue"):
        quasi_monte_carlo(Moments(torch.zeros(1, 3).double(), indefinite))
    # of rank one in float32 some eigenvalues are below 0 by rounding: they count as 0
    factor = 1e3 * torch.randn(40, 6, 1)
    moments = Moments.from_factor(torch.zeros(40, 6), factor)
    exact = torch.softmax(factor * sobol_normals(512, 1).float(), -2).mean(-1)
    torch.testing.assert_close(quasi_monte_carlo(moments), exact, rtol=0, atol=0.02)


def by_quad(mean: float, std: float) -> float:
    """∫ σ'(x) Φ((m - x) / s) dx on pieces about the bends of the integrand."""

    def integrand(x: float) -> float:
        return float(expit(x) * expit(-x) * np.exp(log_ndtr((mean - x) / std)))

    ends = sorted({-700.0, -60.0, -10.0, 0.0, 10.0, 60.0, *np.clip([mean - 9 * std, mean, mean + 9 * std], -700, 60)})
    return sum(quad(integrand, *pair, epsabs=0, epsrel=1e-12, limit=300)[0] for pair in itertools.pairwise(ends))


def test_every_mean_and_variance_has_the_value_of_adaptive_quadrature() -> None:
    cases = [(m, v) for m in (-40.0, -7.0, -1.0, 0.0, 0.4, 3.0, 25.0) for v in (1e-4, 0.3, 3.9, 4.1, 30.0, 1e3, 1e8)]
    mean, variance = (torch.tensor(column, dtype=torch.float64) for column in zip(*cases, strict=True))
    expected = torch.tensor([by_quad(m, math.sqrt(v)) for m, v in cases], dtype=torch.float64)
    found = expected_sigmoid(mean, variance)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=0)  # relative: rare labels have their true loss
    torch.testing.assert_close(expected_sigmoid(-mean, variance), 1 - found, rtol=0, atol=1e-12)
    torch.testing.assert_close(expected_sigmoid(mean, variance, max_bytes=1), found, rtol=0, atol=1e-15)
    certain = torch.tensor([-700.0, -2.0, 0.0, 700.0], dtype=torch.float64)
    torch.testing.assert_close(expected_sigmoid(certain, torch.zeros(4).double()), torch.sigmoid(certain))
    single = expected_sigmoid(mean.float().reshape(7, 7), variance.float().reshape(7, 7))
    assert single.dtype == torch.float32 and single.shape == (7, 7)


def test_it_is_differentiable_on_both_sides_of_the_change_of_rule() -> None:
    mean = torch.tensor([-30.0, -2.0, 0.0, 5.0], dtype=torch.float64).repeat_interleave(4).requires_grad_()
    variance = torch.tensor([0.5, 3.0, 5.0, 100.0], dtype=torch.float64).repeat(4).requires_grad_()
    assert torch.autograd.gradcheck(expected_sigmoid, (mean, variance))
    low, high = expected_sigmoid(torch.full((2,), 1.3).double(), torch.tensor([4 - 1e-12, 4 + 1e-12]).double())
    assert abs(float(low - high)) < 1e-9
    nothing = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    expected_sigmoid(torch.ones(1).double(), nothing).sum().backward()
    assert nothing.grad is not None and bool(nothing.grad.isfinite())
