from __future__ import annotations

import pytest
import torch
from torch import nn

import lapwing as lw
from benchmarks.data import generator
from benchmarks.tasks import BATCH, Batched, Linearised
from lapwing.evaluation.baselines import Map
from lapwing.posteriors import Posterior


@pytest.fixture(scope="module")
def posterior() -> Posterior:
    """Of a network that is linear in its weights."""
    source = generator(3)
    x, y = torch.randn(9, 4, generator=source, dtype=torch.float64), torch.arange(9) % 3
    recipe = lw.Laplace(lw.Categorical(), prior=lw.Isotropic(2.0), structure=lw.Full(view="weights"))
    fitted = recipe.fit(nn.Linear(4, 3).double(), (x, y))
    assert isinstance(fitted, Posterior)
    return fitted


def test_linearised_functions_of_a_linear_network_are_the_network_at_the_draws(posterior: Posterior) -> None:
    x = torch.randn(7, 4, generator=generator(), dtype=torch.float64)
    found = Linearised.of(posterior, 5, generator(1))
    weights = posterior.sample(5, generator=generator(1))
    expected = torch.stack([posterior.network(x, posterior.network.with_weights(row)) for row in weights])
    torch.testing.assert_close(found.outputs(x), expected.detach())
    torch.testing.assert_close(found.outputs(x[2:4]), expected[:, 2:4].detach())


def test_batches_change_no_prediction() -> None:
    sizes: list[int] = []

    class Counting(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            sizes.append(len(x))
            return super().forward(x)

    whole = Map(Counting(4, 3))
    x = torch.randn(2 * BATCH + 30, 4, generator=generator())
    expected = whole.predict(x).probs
    sizes.clear()
    torch.testing.assert_close(Batched(whole).predict(x).probs, expected)
    assert sizes == [BATCH, BATCH, 30] and Batched(whole).likelihood == whole.likelihood
