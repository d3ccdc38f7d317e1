"""The log-determinant by probes: its operator, and value and gradient against the exact ones."""

from __future__ import annotations

import pytest
import torch

import lapwing as lw
from lapwing.ground.errors import ConfigError
from lapwing.jacobian.network.differentiable import LiveBatch, live
from lapwing.methods.marginal import Gram, MarginalLikelihood, StochasticLanczos
from lapwing.methods.marginal.batch import MiniBatch
from lapwing.methods.marginal.stochastic import inner_operator
from tests.methods.marginal.setting import PRIORS, dense, gradients, marginal_of
from tests.posterior_cases import mlp, normal, refused


@pytest.mark.parametrize("name", ["gaussian", "categorical"])
def test_the_operator_is_the_inner_matrix_of_the_rows(name: str) -> None:
    marginal, x, y = marginal_of(name, PRIORS["layerwise"])
    live_batch = LiveBatch(live(marginal.model), marginal.likelihood, x[:4], y[:4])
    batch = MiniBatch(live_batch, marginal._hyper, marginal._surveyed(x), 6)
    rows = batch.rows().transpose(0, 1).flatten(0, 1).detach()
    expected = torch.eye(len(rows), dtype=torch.float64) + 1.5 * rows @ rows.mT
    torch.testing.assert_close(inner_operator(batch).dense(), expected)


@pytest.mark.parametrize("name", ["gaussian", "categorical"])
def test_value_and_gradients_have_the_exact_ones_as_their_mean(name: str, generator: torch.Generator) -> None:
    """Within five standard errors of 40 losses with 4 probes each."""
    log_det = StochasticLanczos(samples=4, rtol=1e-10)
    marginal, x, y = marginal_of(name, PRIORS["layerwise"], log_det=log_det, generator=generator)
    exact = dense(marginal, x, y)
    expected = torch.cat([exact.detach().view(1), *(g.flatten() for g in gradients(exact, marginal))])
    draws = []
    for _ in range(40):
        loss = marginal.loss(x, y)
        draws.append(torch.cat([loss.detach().view(1), *(g.flatten() for g in gradients(loss, marginal))]))
    mean, error = torch.stack(draws).mean(0), torch.stack(draws).std(0) / 40**0.5
    assert bool(((mean - expected).abs() <= 5 * error + 1e-8).all())
    assert float(error[0]) > 0


def test_of_one_row_of_many_examples_they_are_exact() -> None:
    """Random signs have no variance on a matrix of one entry, so that N / B = 6 shows."""
    model, x, y = mlp(1), normal(6, 3), normal(6, 1, seed=1)
    options = {"data_size": 6, "warm_up": 0, "settle": 0, "updates": lw.marginal.ByGradient()}
    losses, moves = [], []
    for log_det in (Gram(), StochasticLanczos(samples=2, rtol=1e-10)):
        marginal = MarginalLikelihood(model, lw.Gaussian(4.0), PRIORS["layerwise"], log_det=log_det, **options)
        losses.append(marginal.loss(x[:1], y[:1]))
        moves.append(torch.cat([g.flatten() for g in gradients(losses[-1], marginal)]))
    torch.testing.assert_close(losses[1], losses[0])
    torch.testing.assert_close(moves[1], moves[0])


def test_the_same_seed_gives_the_same_loss() -> None:
    losses = []
    for _ in range(2):
        generator = torch.Generator().manual_seed(3)
        marginal, x, y = marginal_of("gaussian", lw.Isotropic(), log_det=StochasticLanczos(), generator=generator)
        losses.append(marginal.loss(x, y).item())
    assert losses[0] == losses[1]


def test_options_that_make_no_sense() -> None:
    with refused(ConfigError, expected="samples of at least 1", got="0", hint="samples=1"):
        StochasticLanczos(samples=0)
