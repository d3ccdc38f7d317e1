from __future__ import annotations

import pytest
import torch
from torch import nn

import lapwing as lw
from benchmarks.data import generator
from benchmarks.tasks import matrix_free
from studies.full.digits import by_draws


@pytest.mark.parametrize("linearised", [True, False])
def test_draws_predict_what_the_exact_posterior_of_a_linear_network_does(linearised: bool) -> None:
    x = torch.randn(30, 3, dtype=torch.float64, generator=generator())
    y = torch.arange(30) % 4
    model = nn.Linear(3, 4).double()
    posterior = matrix_free(model, (x, y), 1.0)
    delta = posterior.draw(4000, generator=generator(1)).value.mT
    found = by_draws(posterior, delta, (x, y), linearised=linearised)
    recipe = lw.Laplace(lw.Categorical(), prior=lw.Isotropic(1.0), structure=lw.Full(view="weights"))
    exact = lw.evaluate(recipe.fit(model, (x, y)), (x, y), link="qmc")
    assert found["nll"] == pytest.approx(exact["nll"], rel=0.02)
    assert found["brier"] == pytest.approx(exact["brier"], rel=0.02)
