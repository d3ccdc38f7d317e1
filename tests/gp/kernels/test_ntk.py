"""The tangent kernel: a Gaussian process says of a network's outputs what Laplace says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev

import lapwing as lw
from lapwing.gp import NTK
from lapwing.ground.errors import ConfigError, MismatchError, ShapeError
from lapwing.structures.selection import Selection
from tests.checker import unchecked
from tests.posterior_cases import mlp, normal, refused, seeded

X, NEW, Y = normal(11, 3), normal(4, 3, seed=1), normal(11, 1, seed=2)
WEIGHTS: list[Selection] = [lw.All(), lw.LastLayer(), lw.Names("0.*")]


def jacobian(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """By automatic differentiation, ``[n, d]``."""
    model = model.eval()
    found = jacrev(lambda params: functional_call(model, params, (x,))[:, 0])(dict(model.named_parameters()))
    return torch.cat([part.flatten(1) for part in found.values()], 1)


def test_entries_are_products_of_gradients() -> None:
    j, k = jacobian(mlp(1), X), NTK(mlp(1))
    torch.testing.assert_close(k(X, NEW), j @ jacobian(mlp(1), NEW).mT)
    torch.testing.assert_close(k.diagonal(X), j.square().sum(1))


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_variances_are_those_of_laplace_in_the_function_view(weights: Selection) -> None:
    model, precision, noise = mlp(1), 0.7, 15.0
    structure = lw.Full(view="functions")
    laplace = lw.Laplace(lw.Gaussian(noise), prior=lw.Isotropic(precision), structure=structure, weights=weights)
    posterior = laplace.fit(model, (X, Y))
    process = lw.GP((1 / precision) * NTK(model, weights), lw.Gaussian(noise), mean="zero").fit((X, Y))
    theirs: Any = posterior.predict(NEW, joint=True)
    ours: Any = process.predict(NEW, joint=True)
    torch.testing.assert_close(ours.outputs.covariance, theirs.outputs.covariance, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(process.predict(NEW).std, posterior.predict(NEW).std)  # type: ignore[union-attr]


def test_the_mean_of_residuals_is_the_step_of_the_linear_model() -> None:
    model, noise = mlp(1).eval(), 15.0
    j, new = jacobian(model, X), jacobian(model, NEW)
    with torch.no_grad():
        rest = Y - model(X)
    step = torch.linalg.solve(noise * j.mT @ j + torch.eye(j.shape[1]).double(), noise * j.mT @ rest)
    process = lw.GP(NTK(model), lw.Gaussian(noise), mean="zero").fit((X, rest))
    torch.testing.assert_close(process.mean(NEW), new @ step)


@pytest.mark.parametrize("count", [10, 60])
def test_features_stand_for_the_kernel(count: int) -> None:
    k, generator = NTK(mlp(1)), torch.Generator().manual_seed(0)
    products = [(f := k.features(count, X, generator))(X) @ f(X).mT for _ in range(300 if count == 10 else 1)]
    torch.testing.assert_close(sum(products) / len(products), k(X, X), rtol=0.15, atol=0.15 if count == 10 else 1e-9)


def test_functions_are_drawn_and_the_module_is_left_as_it_was() -> None:
    model = mlp(1).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    process = lw.GP(NTK(model), lw.Gaussian(15.0), solver=lw.solvers.CG(rtol=1e-8), samples=3).fit((X, Y))
    assert process.predict(NEW).std.shape == (4, 1)  # type: ignore[union-attr]
    assert model.training and all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(value.grad is None for value in model.parameters())


def test_its_scale_and_the_noise_are_tuned() -> None:
    process = lw.GP(1.0 * NTK(mlp(1)), lw.Gaussian(1.0), mean="zero").fit((X, Y))
    tuned = lw.tune(process, lw.gp.Evidence(noise=False))
    assert float(tuned.log_marginal()) > float(process.log_marginal())


def test_networks_it_does_not_take() -> None:
    with refused(ShapeError, "a network with one output. Got 2 outputs"):
        NTK(mlp(2))(X, X)
    with unchecked(), refused(ConfigError, "an nn.Module"):
        NTK(nn.Linear)  # type: ignore[arg-type]
    kernel = NTK(model := seeded(lambda: nn.Linear(3, 1)))
    kernel(X, X)
    with torch.no_grad():
        model.weight.add_(1.0)  # type: ignore[operator]
    with refused(MismatchError, "written to since"):
        kernel(X, X)
