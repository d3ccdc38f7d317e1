"""The log-determinant of a mini-batch: exact against the dense evidence, and by probes against the exact one."""

from __future__ import annotations

import pytest
import torch

import lapwing as lw
from lapwing.ground.errors import ConfigError, TooLargeError
from lapwing.methods.marginal import GramDeterminant, MarginalLikelihood, MiniBatch, StochasticLanczos
from lapwing.methods.marginal.live_batch import LiveBatch, live
from lapwing.methods.marginal.log_det import inner_operator
from tests.methods.marginal.setting import PRIORS, SIZE, case, dense, gradients, marginal_of
from tests.posterior_cases import mlp, normal, refused


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("name", ["gaussian", "categorical"])
def test_value_and_gradients_are_those_of_the_dense_evidence(name: str, prior: str) -> None:
    marginal, x, y = marginal_of(name, PRIORS[prior])
    loss, expected = marginal.loss(x, y), dense(marginal, x, y)
    torch.testing.assert_close(loss, expected)
    for ours, theirs in zip(gradients(loss, marginal), gradients(expected, marginal), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_loss_is_minus_the_log_marginal_of_the_full_posterior() -> None:
    marginal, x, y = marginal_of("gaussian", lw.Isotropic(1.7))
    model, likelihood, _, _ = case("gaussian")
    posterior = lw.Laplace(likelihood, prior=lw.Isotropic(1.7), structure=lw.Full()).fit(model, (x, y))
    assert marginal.loss(x, y).item() == pytest.approx(-posterior.log_marginal(), rel=1e-10)


def test_a_mini_batch_counts_n_over_b_times() -> None:
    marginal, x, y = marginal_of("categorical", lw.Isotropic(1.7), log_det=GramDeterminant())
    repeated, _, _ = marginal_of("categorical", lw.Isotropic(1.7))
    expected = repeated.loss(x[:2].repeat(3, 1), y[:2].repeat(3))
    torch.testing.assert_close(marginal.loss(x[:2], y[:2]), expected)


def test_both_gram_matrices_agree() -> None:
    """3 · 20 rows beside 31 weights, and 3 · 6."""
    model, likelihood, x, y = case("categorical")
    x, y = torch.cat([x, -x, 2 * x, x - 1]), y.repeat(4)
    marginal, _, _ = marginal_of("categorical", lw.Isotropic(0.3), data_size=4 * SIZE)
    torch.testing.assert_close(marginal.loss(x, y), dense(marginal, x, y))
    del model, likelihood


def test_rows_that_would_not_fit_in_memory_are_refused() -> None:
    """3 · 6 rows of 31 weights, and their Gram matrix."""
    needed = 8 * (18 * 31 + 18**2)
    marginal, x, y = marginal_of("categorical", lw.Isotropic(), log_det=GramDeterminant(max_bytes=needed - 1))
    with refused(TooLargeError, f"18 rows of 31 weights, {needed:,}"):
        marginal.loss(x, y)
    marginal_of("categorical", lw.Isotropic(), log_det=GramDeterminant(max_bytes=needed))[0].loss(x, y)


def test_mini_batches_are_below_all_data_on_average() -> None:
    """Concavity of the log-determinant: the documented bias and its sign."""
    marginal, x, y = marginal_of("gaussian", lw.Isotropic(0.1))
    marginal.loss(x, y)
    whole = marginal._terms[-1][2]
    for i in range(SIZE):
        marginal.loss(x[i : i + 1], y[i : i + 1])
    parts = [terms[2] for terms in marginal._terms[1:]]
    assert sum(parts) / SIZE < whole - 1.0


@pytest.mark.parametrize("name", ["gaussian", "categorical"])
def test_the_operator_is_the_inner_matrix_of_the_rows(name: str) -> None:
    marginal, x, y = marginal_of(name, PRIORS["layerwise"])
    live_batch = LiveBatch(live(marginal.model), marginal.likelihood, x[:4], y[:4])
    batch = MiniBatch(live_batch, marginal._hyper, marginal._surveyed(x), 6)
    rows = batch.rows().transpose(0, 1).flatten(0, 1).detach()
    expected = torch.eye(len(rows), dtype=torch.float64) + 1.5 * rows @ rows.mT
    torch.testing.assert_close(inner_operator(batch).dense(), expected)


@pytest.mark.parametrize("name", ["gaussian", "categorical"])
@pytest.mark.no_cover
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
    for log_det in (GramDeterminant(), StochasticLanczos(samples=2, rtol=1e-10)):
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
    with refused(ConfigError, "samples of at least 1"):
        StochasticLanczos(samples=0)
