"""Products with the output Hessian equal its matrix, also where one class has nearly all probability."""

from __future__ import annotations

import pytest
import torch

from lapwing.curvature.curved import curved
from lapwing.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Likelihood, Poisson

LIKELIHOODS = [Categorical(), Bernoulli(), Gaussian(0.7), HeteroscedasticGaussian(), Poisson()]


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda each: type(each).__name__)
def test_products_equal_the_matrix(likelihood: Likelihood, generator: torch.Generator) -> None:
    f, u = (torch.randn(5, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    y = likelihood.canonical_targets(f, likelihood.draw(f, generator=generator))
    expected = (likelihood.hessian(f, y) @ u.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(curved(likelihood, f, y, u), expected)


def test_ignored_positions_have_no_curvature(generator: torch.Generator) -> None:
    f, u = (torch.randn(2, 3, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    y = torch.tensor([[0, -100, 1], [2, 3, -100]])
    likelihood = Categorical(event_dim=1)
    expected = (likelihood.hessian(f, y) @ u.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(curved(likelihood, f, y, u), expected)


def test_nothing_cancels_where_a_class_is_certain() -> None:
    f, u = torch.tensor([[30.0, 0.0, 1.0]]), torch.tensor([[1e3, 1e3 + 1, 1e3 - 2]])
    exact = curved(Categorical(), f.double(), torch.tensor([0]), u.double())
    torch.testing.assert_close(curved(Categorical(), f, torch.tensor([0]), u).double(), exact, rtol=1e-5, atol=0.0)
