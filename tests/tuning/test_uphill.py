"""What a search for the largest bound keeps on its way."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn

import lapwing as lw
from lapwing.tuning.checkpoint import State
from lapwing.tuning.expectation import Expectation
from tests.posterior_cases import normal


def test_draws_are_kept_of_few_of_the_precisions_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each new precision: those of the first, and of the last and the best, which are one on the way up."""
    made: list[weakref.ref] = []
    alive: list[int] = []
    expect = Expectation.at

    def at(expectation: Expectation, state: State, progress: bool = False):
        alive.append(sum(draws() is not None for draws in made))
        found = expect(expectation, state, progress)
        made.append(weakref.ref(found[1].draws))
        return found

    monkeypatch.setattr(Expectation, "at", at)
    x, model = torch.cat([normal(20, 2, seed=1) - 4.0, normal(20, 2, seed=2) + 4.0]), nn.Linear(2, 2).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-5.0, -5.0], [5.0, 5.0]]))
        model.bias.zero_()
    laplace = lw.Laplace(lw.Categorical(), prior=lw.Isotropic(1e-6), structure=lw.Sampled(4))
    lw.tune(laplace.fit(model, (x, torch.arange(40) // 20)), lw.ELBO(samples=4, examples=10))
    assert len(made) > 4 and max(alive) <= 2
