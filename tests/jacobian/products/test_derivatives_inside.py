"""A network that differentiates itself: its outputs are a function and the slope of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from tests.curvature.unchanged import unchanged
from tests.posterior_cases import normal, seeded

X, Y = normal(7, 2), normal(7, 2, seed=1)


class Sloped(nn.Module):
    """u(x) and its derivative along the first input."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            u = self.net(x)
            (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        return torch.cat([u, slope[:, :1]], -1)


def expected() -> Tensor:
    """Variances of the outputs, from the Jacobian by autograd."""
    model = seeded(Sloped)
    outputs = model(X)
    params = list(model.parameters())
    rows = [
        torch.autograd.grad(f, params, retain_graph=True, allow_unused=True, materialize_grads=True)
        for f in outputs.flatten()
    ]
    jacobian = torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])
    precision = jacobian.mT @ jacobian + torch.eye(jacobian.shape[1])
    return torch.einsum("mi,ij,mj->m", jacobian, precision.inverse(), jacobian).view(7, 2)


@pytest.mark.parametrize("structure", [lw.Full(), lw.LowRank(17), lw.MatrixFree()], ids=lambda x: type(x).__name__)
def test_variances_are_those_of_its_jacobian(structure: Any) -> None:
    model = seeded(Sloped)
    with unchanged(model):
        posterior = lw.Laplace(lw.Gaussian(), structure=structure).fit(model, (X, Y))
        variance = posterior.predict(X).outputs.variance
    torch.testing.assert_close(variance, expected(), rtol=1e-5, atol=1e-8)


def test_draws_scatter_as_they_should() -> None:
    """The mean square of 400 draws is within five standard errors, √(2/400), of the variance."""
    posterior = lw.Laplace(lw.Gaussian(), structure=lw.Sampled(samples=400)).fit(seeded(Sloped), (X, Y))
    ratio = posterior.predict(X).outputs.variance / expected()
    assert float((ratio - 1).abs().max()) < 5 * (2 / 400) ** 0.5
