"""The loss of the tangent model as minimisers see it: its gradient is its derivative, its pieces add up."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
import torch

from lapwing.linear.mode.loss import Loss
from lapwing.linear.tangent import Target
from tests.linear.tangent_dense import SCALE, Dense, somewhere, uneven
from tests.posterior_cases import PROBLEMS, normal

targets = pytest.mark.parametrize("target", get_args(Target))
problems = pytest.mark.parametrize("name", PROBLEMS)


def made(name: str, target: Target) -> tuple[Loss, Dense]:
    dense = Dense(name, target)
    return Loss(dense.training, uneven(dense.size), SCALE, target == "affine"), dense


@targets
@problems
def test_the_gradient_is_the_derivative_at_any_noise(name: str, target: Target) -> None:
    loss, dense = made(name, target)
    w, step = somewhere(dense.size), 1e-5 * normal(dense.size, seed=8)
    with torch.no_grad():
        here, ahead, behind = (loss.at_weights(w + t * step) for t in (0.0, 1.0, -1.0))
        slope = (loss.value(ahead) - loss.value(behind)) / 2
        assert slope == pytest.approx(float(loss.gradient(here)[0] @ step), rel=1e-5, abs=1e-10 * abs(loss.value(here)))


@targets
@problems
def test_the_scores_of_the_pieces_add_up_to_it(name: str, target: Target) -> None:
    loss, dense = made(name, target)
    w = somewhere(dense.size)
    with torch.no_grad():
        pieces = [score(w) for group in loss.scores(3) for score in group]
        torch.testing.assert_close(torch.stack(pieces).sum(0), SCALE * loss.at_weights(w).score)


@pytest.mark.parametrize("spare", [2**28, 8])
@pytest.mark.parametrize("name", ["categorical", "poisson", "gaussian"])
def test_a_line_knows_the_loss_along_it(name: str, spare: int) -> None:
    """By one pass over the data where the outputs fit, or by a pass for each length."""
    loss, dense = made(name, "affine")
    loss = replace(loss, spare=spare)
    w, p = somewhere(dense.size), normal(dense.size, seed=8)
    with torch.no_grad():
        line = loss.line(loss.at_weights(w), p)
        assert (line.known_rays is None) == (spare == 8)
        for length in (0.0, 0.7):
            t = torch.tensor(length, dtype=torch.float64)
            along, slope = torch.func.grad_and_value(lambda t: SCALE * dense.nll(w + t * p))(t)[::-1]
            assert line.value(length) == pytest.approx(float(along))
            assert line.slope(length) == pytest.approx(float(slope))
        end = line.end(0.7)
        torch.testing.assert_close(end.weights, w + 0.7 * p)
        torch.testing.assert_close(end.score, loss.at_weights(end.weights).score)
        assert bool(end.curvature.output_cache) == (spare > 8)
