"""Roots of covariances: of any rank, with derivatives that are finite where eigenvalues coincide."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lapwing.ground.errors import NumericalError
from lapwing.moments.outputs import Moments
from lapwing.moments.roots import SymmetricRoot, covariance_root
from lapwing.predictive.links import monte_carlo
from tests.linalg.cases import normal, spd


def singular(rank: int) -> torch.Tensor:
    factor = normal(3, rank, seed=rank)
    return factor @ factor.mT


def test_of_every_rank_side_by_side() -> None:
    covariances = torch.stack([spd(3, 9.0), singular(2), torch.zeros(3, 3).double(), torch.eye(3).double()])
    for some in (covariances, covariances[1:3], covariances[:1]):
        root = covariance_root(some)
        torch.testing.assert_close(root @ root.mT, some)


@pytest.mark.parametrize("singular_too", [False, True])
def test_derivatives_are_those_of_differences_where_eigenvalues_coincide(singular_too: bool) -> None:
    """Of the identity, beside a covariance of rank two, which changes within its range."""
    line = spd(3, 9.0, seed=5)
    weights = normal(2, 3, 3, seed=6)
    noise = normal(3, 4, seed=7)

    def value(step: torch.Tensor) -> torch.Tensor:
        low = nn.functional.pad(spd(2, 4.0), (0, 1, 0, 1)) if singular_too else spd(3, 4.0)
        both = torch.stack([torch.eye(3).double() + step * line, (1.0 + step) ** 2 * low])
        return ((covariance_root(both) @ noise).tanh() * (weights @ noise)).sum()

    step = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(value(step), step)
    size = 1e-5
    expected = (value(torch.tensor(size).double()) - value(torch.tensor(-size).double())) / (2 * size)
    assert float(found) == pytest.approx(float(expected), rel=1e-7)


def test_the_symmetric_root_solves_its_equation() -> None:
    """``dΣ = dR R + R dR`` for a definite covariance, whatever its eigenvalues."""
    covariance = torch.diag(torch.tensor([1.0, 1.0, 4.0]).double()).requires_grad_()
    root = SymmetricRoot.apply(covariance[None], torch.float64)
    torch.testing.assert_close(root[0].detach(), torch.diag(torch.tensor([1.0, 1.0, 2.0]).double()))
    weights = normal(3, 3, seed=1)
    (gradient,) = torch.autograd.grad((root[0] * weights).sum(), covariance)
    symmetric = 0.5 * (weights + weights.mT)
    sums = torch.tensor([[2.0, 2.0, 3.0], [2.0, 2.0, 3.0], [3.0, 3.0, 4.0]]).double()
    torch.testing.assert_close(gradient, symmetric / sums)


def test_probabilities_by_draws_have_derivatives_where_logits_are_alike() -> None:
    scale = torch.tensor([1.0, 0.0]).double().requires_grad_()
    covariance = scale[:, None, None] * torch.eye(3).double()
    probs, _ = monte_carlo(Moments(normal(2, 3), covariance), 50, generator=torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad(probs[:, 0].sum(), scale)
    assert bool(torch.isfinite(gradient).all()) and float(gradient[0]) != 0.0


def test_an_indefinite_covariance_is_refused() -> None:
    with pytest.raises(NumericalError, match="eigenvalue of -1"):
        covariance_root(torch.diag(torch.tensor([1.0, -1.0])))
