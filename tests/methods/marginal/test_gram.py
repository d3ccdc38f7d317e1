"""The loss with the exact log-determinant, against the dense one: value and every gradient."""

from __future__ import annotations

import pytest
import torch

import lapwing as lw
from lapwing.ground.errors import TooLargeError
from lapwing.methods.marginal import Gram
from tests.methods.marginal.setting import PRIORS, SIZE, case, dense, gradients, marginal_of
from tests.posterior_cases import refused


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
    marginal, x, y = marginal_of("categorical", lw.Isotropic(1.7), log_det=Gram())
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
    marginal, x, y = marginal_of("categorical", lw.Isotropic(), log_det=Gram(max_bytes=needed - 1))
    with refused(
        TooLargeError, expected=f"{needed - 1:,} bytes", got=f"18 rows of 31 weights, {needed:,}", hint="Bound"
    ):
        marginal.loss(x, y)
    marginal_of("categorical", lw.Isotropic(), log_det=Gram(max_bytes=needed))[0].loss(x, y)


def test_mini_batches_are_below_all_data_on_average() -> None:
    """Concavity of the log-determinant: the documented bias and its sign."""
    marginal, x, y = marginal_of("gaussian", lw.Isotropic(0.1))
    marginal.loss(x, y)
    whole = marginal._terms[-1].half_log_det
    for i in range(SIZE):
        marginal.loss(x[i : i + 1], y[i : i + 1])
    parts = [terms.half_log_det for terms in marginal._terms[1:]]
    assert sum(parts) / SIZE < whole - 1.0
