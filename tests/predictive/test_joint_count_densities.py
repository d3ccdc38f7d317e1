"""Densities of several counts together against integrals of one dimension."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lapwing.moments import Moments
from lapwing.predictive.count_densities import log_density
from lapwing.predictive.distributions import Counts, OverdispersedCounts
from lapwing.predictive.joint_count_densities import log_density_together
from tests.predictive.test_count_densities import poisson, spread_out

LAWS = pytest.mark.parametrize("law", [poisson, spread_out])
CASES = [
    ((0.0, 3.0, 1.0), (0.0, 1.0, -3.0), (0.5, 0.1, 2.0)),
    ((1e3, 0.0, 4e4), (6.0, -8.0, 11.0), (1.0, 1.0, 0.2)),
    ((0.0, 0.0, 2.0), (12.0, 3.0, -9.0), (0.3, 2.0, 0.5)),
    ((1e6, 5.0, 7.0), (2.0, 1.5, 2.0), (4.0, 1e-12, 0.01)),
    ((1e4, 0.0, 3.0), (0.0, 0.0, 0.0), (100.0, 1.0, 1.0)),
]
"""Counts, means and variances of log rates of one position."""


def together(law: Any, y: Tensor, mean: Tensor, root: Tensor, **options: Any) -> Tensor:
    return log_density_together(y, mean, root, law, points=512, **options)


@LAWS
@pytest.mark.parametrize("case", CASES)
def test_counts_that_have_nothing_in_common_have_the_product(law: Any, case: Any) -> None:
    y, mean, variance = torch.tensor(case, dtype=torch.float64)
    found = together(law, y[None], mean[None], variance.sqrt().diag_embed()[None])
    expected = log_density(y, mean, variance, law).sum()
    torch.testing.assert_close(found[0], expected, rtol=0.0, atol=0.01)


@LAWS
@pytest.mark.parametrize("rate", [0.3, 30.0, 3e4])
def test_counts_that_share_their_change_have_the_integral_over_it(law: Any, rate: float) -> None:
    mean = torch.tensor([rate, 2 * rate], dtype=torch.float64).log()
    root = torch.tensor([0.5, 0.4], dtype=torch.float64)
    y = (1.4 * mean.exp()).round()
    z = torch.linspace(-12, 12, 100_001, dtype=torch.float64)[:, None]
    values = law(y, mean + z * root).sum(-1) - 0.5 * z[:, 0].square()
    expected = torch.logsumexp(values, 0) + math.log(24 / 100_000 / math.sqrt(2 * math.pi))
    torch.testing.assert_close(together(law, y[None], mean[None], root[None, :, None])[0], expected, rtol=0, atol=0.01)


def test_the_pieces_do_not_matter_nor_what_has_no_variance() -> None:
    y, mean, variance = torch.tensor(CASES, dtype=torch.float64).movedim(1, 0)
    root = variance.sqrt().diag_embed()
    whole = together(poisson, y, mean, root)
    torch.testing.assert_close(together(poisson, y, mean, root, max_bytes=1), whole, rtol=1e-12, atol=0.0)
    torch.testing.assert_close(together(poisson, y, mean, root[..., :0]), poisson(y, mean).sum(-1))
    torch.testing.assert_close(together(poisson, y, mean, 0 * root), poisson(y, mean).sum(-1), rtol=0.0, atol=1e-3)


def test_has_the_derivatives_of_the_integral() -> None:
    y = torch.tensor([[40.0, 3.0]], dtype=torch.float64)
    mean = torch.tensor([[3.0, 0.5]], dtype=torch.float64, requires_grad=True)
    variance = torch.tensor([[0.8, 0.3]], dtype=torch.float64)
    (found,) = torch.autograd.grad(together(poisson, y, mean, variance.sqrt().diag_embed()).sum(), mean)
    exact = torch.func.grad(lambda m: log_density(y[0], m, variance[0], poisson).sum())(mean.detach()[0])
    torch.testing.assert_close(found[0], exact, rtol=0.02, atol=0.01)


@pytest.mark.parametrize("of", [Counts.of, lambda outputs: OverdispersedCounts.of(outputs, 1e-3)])
def test_predictions_of_large_counts_have_it(of: Any) -> None:
    """Of 512 points of the prior hardly one is where counts of a thousand are likely."""
    mean = torch.full((3, 5), math.log(1000.0))
    y = torch.tensor([700.0, 1000.0, 1500.0])[:, None].expand(3, 5)
    found = of(Moments(mean, 0.25 * torch.eye(5).expand(3, 5, 5))).log_prob(y)
    alone = of(Moments(mean.reshape(15, 1), torch.full((15, 1, 1), 0.25))).log_prob(y.reshape(15, 1))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, alone.view(3, 5).sum(-1), rtol=0.0, atol=0.02)
