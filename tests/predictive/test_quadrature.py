"""The mean of a sigmoid of a Gaussian against adaptive quadrature."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from scipy.integrate import quad
from scipy.special import expit, log_ndtr

from lapwing.predictive import expected_sigmoid


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
