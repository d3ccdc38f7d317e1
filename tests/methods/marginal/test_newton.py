"""The Newton step off the optimum, against a linear model whose evidence is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal

import lapwing as lw
from lapwing.ground.errors import ConvergenceWarning, UnsupportedError
from lapwing.methods.marginal import newton_step
from tests.posterior_cases import labels, mlp, normal, refused


def test_of_a_linear_model_it_leads_to_the_mode_and_its_gain_to_the_evidence() -> None:
    model, x, y = nn.Linear(3, 1).double(), normal(8, 3), normal(8, 1, seed=1)
    recipe = lw.Laplace(lw.Gaussian(4.0), prior=lw.Isotropic(0.5), structure=lw.Full(view="weights"))
    posterior = recipe.fit(model, (x, y))
    step = newton_step(posterior, (x, y))
    design = torch.cat([x, torch.ones(8, 1, dtype=torch.float64)], 1)
    mode = torch.linalg.solve(4 * design.mT @ design + 0.5 * torch.eye(4).double(), 4 * design.mT @ y)[:, 0]
    torch.testing.assert_close(step.weights, mode)
    covariance = design @ design.mT / 0.5 + torch.eye(8).double() / 4
    exact = MultivariateNormal(torch.zeros(8).double(), covariance).log_prob(y[:, 0])
    assert posterior.log_marginal() + step.gain == pytest.approx(float(exact), rel=1e-9)
    assert step.gain > 1.0
    with torch.no_grad():
        model.weight.copy_(mode[:3])
        model.bias.copy_(mode[3:])
    assert newton_step(recipe.fit(model, (x, y)), (x, y)).gain == pytest.approx(0.0, abs=1e-12)


def test_of_a_classifier_it_is_the_step_of_the_log_joint_density() -> None:
    model, x, y = mlp(3), normal(8, 3), labels(8, classes=3)
    posterior = lw.Laplace(lw.Categorical(), prior=lw.Layerwise((0.4, 2.0)), structure=lw.Full(view="weights")).fit(
        model, (x, y)
    )
    theta = posterior.network.weights
    loss = nn.functional.cross_entropy(model.eval()(x), y, reduction="sum")
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
    ascent = -gradient - posterior.prior.diagonal(posterior.network.uncertain, theta) * theta
    delta = torch.linalg.solve(posterior.precision.operator.dense(), ascent)
    step = newton_step(posterior, [(x[:5], y[:5]), (x[5:], y[5:])])
    torch.testing.assert_close(step.weights, theta + delta)
    assert step.gain == pytest.approx(0.5 * float(ascent @ delta))


@pytest.mark.parametrize("solver", [lw.CG(rtol=1e-12), lw.CG(rtol=1e-12, preconditioner=lw.Diagonal())])
def test_of_a_matrix_free_posterior_it_is_that_of_the_full_one(solver: lw.CG) -> None:
    model, x, y = mlp(3), normal(8, 3), labels(8, classes=3)
    recipe = lw.Laplace(lw.Categorical(), prior=lw.Layerwise((0.4, 2.0)))
    exact, free = (
        newton_step(replace(recipe, structure=structure).fit(model, (x, y)), (x, y))
        for structure in (lw.Full(view="weights"), lw.MatrixFree(solver))
    )
    torch.testing.assert_close(free.weights, exact.weights)
    assert free.gain == pytest.approx(exact.gain)
    assert exact.gain > 0.1


def test_a_matrix_free_solve_that_fell_short_says_so() -> None:
    model, x, y = mlp(3), normal(8, 3), labels(8, classes=3)
    posterior = lw.Laplace(lw.Categorical(), structure=lw.MatrixFree(lw.CG(max_iterations=1))).fit(model, (x, y))
    with pytest.warns(ConvergenceWarning, match="relative residual"):
        newton_step(posterior, (x, y))


def test_a_posterior_without_a_precision_gets_a_sentence() -> None:
    model, x, y = mlp(), normal(4, 3), normal(4, 2)
    posterior = lw.Laplace(lw.Gaussian(), structure=lw.Full(view="functions")).fit(model, (x, y))
    with refused(UnsupportedError, expected="over the weights", got="FunctionPosterior", hint="Full"):
        newton_step(posterior, (x, y))
