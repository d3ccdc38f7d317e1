"""The gain of a Newton step, against a linear model whose evidence is known."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal

import lapwing as lw
from studies.sine import newton_gain
from tests.posterior_cases import normal


def test_of_a_linear_model_the_gain_leads_to_the_evidence() -> None:
    model, x, y = nn.Linear(3, 1).double(), normal(8, 3), normal(8, 1, seed=1)
    recipe = lw.Laplace(lw.Gaussian(4.0), prior=lw.Isotropic(0.5), structure=lw.Full(view="weights"))
    posterior = recipe.fit(model, (x, y))
    gain = newton_gain(posterior, model, (x, y))
    design = torch.cat([x, torch.ones(8, 1, dtype=torch.float64)], 1)
    covariance = design @ design.mT / 0.5 + torch.eye(8).double() / 4
    exact = MultivariateNormal(torch.zeros(8).double(), covariance).log_prob(y[:, 0])
    assert posterior.log_marginal() + gain == pytest.approx(float(exact), rel=1e-9)
    assert gain > 1.0
