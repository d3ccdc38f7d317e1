"""The differentiable bound, its traces from mini-batches, and its probes."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.ground.errors import ConfigError, DataError
from lapwing.linalg.bounds import shifted_log_determinant_upper
from lapwing.methods.marginal import Bound
from lapwing.methods.marginal.bound import exact_traces, sampled_traces
from tests.methods.marginal.setting import PRIORS, dense, gradients, marginal_of
from tests.posterior_cases import normal, refused

ROWS = normal(5, 2, 7)


def truth(rows: Tensor) -> tuple[Tensor, Tensor]:
    flat = rows.flatten(0, 1)
    ggn = flat.mT @ flat
    return ggn.trace(), (ggn @ ggn).trace()


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("name", ["gaussian", "categorical"])
@pytest.mark.parametrize("rank", [None, 20])
def test_value_and_gradients_are_those_of_the_bound_on_the_dense_matrix(
    name: str, prior: str, rank: int | None
) -> None:
    def ratio(ggn: Tensor, precision: Tensor) -> Tensor:
        whitened = ggn / precision.sqrt() / precision.sqrt()[:, None]
        size = rank or min(6 * (2 if name == "gaussian" else 3), len(ggn))
        return (
            shifted_log_determinant_upper(whitened.trace(), (whitened @ whitened).trace(), size, 1.0)
            + precision.log().sum()
        )

    marginal, x, y = marginal_of(name, PRIORS[prior], log_det=Bound(rank=rank))
    loss, expected = marginal.loss(x, y), dense(marginal, x, y, ratio)
    torch.testing.assert_close(loss, expected)
    for ours, theirs in zip(gradients(loss, marginal), gradients(expected, marginal), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert loss > dense(marginal, x, y)


def test_traces_of_all_mini_batches_have_the_right_mean() -> None:
    parts = [exact_traces(ROWS[list(chosen)], 5) for chosen in combinations(range(5), 3)]
    for mean, expected in zip(torch.tensor(parts).double().mean(0), truth(ROWS), strict=True):
        assert float(mean) == pytest.approx(float(expected), rel=1e-5)


def test_both_gram_matrices_give_the_same_traces() -> None:
    """Ten rows of three weights, and of thirteen of which ten are zero."""
    few = ROWS[..., :3]
    wide = torch.cat([few, torch.zeros(5, 2, 10, dtype=torch.float64)], -1)
    torch.testing.assert_close(exact_traces(few, 9), exact_traces(wide, 9))


def test_the_plainly_scaled_trace_is_the_biased_one() -> None:
    """What the source does, and what the weights of pairs are for."""
    parts = [(5 / 3) ** 2 * truth(ROWS[list(chosen)])[1] for chosen in combinations(range(5), 3)]
    assert torch.stack(parts).mean() > 1.05 * truth(ROWS)[1]


def test_random_combinations_have_the_right_mean_over_all_their_signs() -> None:
    """Two samples of two signs for each of two examples: all 2⁸ of them."""
    rows = ROWS[:2]
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 8).view(-1, 2, 2, 2)
    traces = [sampled_traces(torch.einsum("skn,nkd->nsd", mixing, rows), 2) for mixing in signs]
    means = torch.tensor(traces, dtype=torch.float64).mean(0)
    torch.testing.assert_close(means, torch.stack(truth(rows)))


def test_probes_estimate_the_exact_bound(generator: torch.Generator) -> None:
    exact, x, y = marginal_of("categorical", lw.Isotropic(1.7), log_det=Bound())
    sampled, _, _ = marginal_of("categorical", lw.Isotropic(1.7), log_det=Bound(samples=200), generator=generator)
    assert sampled.loss(x, y).item() == pytest.approx(exact.loss(x, y).item(), abs=0.3)
    assert sampled.loss(x, y).item() != sampled.loss(x, y).item()


def test_a_batch_of_one_has_no_pairs() -> None:
    marginal, x, y = marginal_of("gaussian", lw.Isotropic(), log_det=Bound())
    with refused(DataError, "at least two examples"):
        marginal.loss(x[:1], y[:1])
    alone, _, _ = marginal_of("gaussian", lw.Isotropic(), log_det=Bound(), data_size=1)
    torch.testing.assert_close(exact_traces(ROWS[:1], 1)[1], truth(ROWS[:1])[1])
    assert torch.isfinite(alone.loss(x[:1], y[:1]))


@pytest.mark.parametrize(("name", "least"), [("rank", 1), ("samples", 2)])
def test_counts_that_make_no_sense(name: str, least: int) -> None:
    with refused(ConfigError, f"{name} of at least {least}"):
        Bound(**{name: least - 1})
