"""The loss of the tangent model as minimisers see it: its gradient is its derivative, its pieces add up."""

from __future__ import annotations

import pytest
import torch

from lapwing.linear.loss import Points, TangentLoss
from lapwing.linear.tangent import Target
from tests.linear.tangent_dense import SCALE, Dense, somewhere, uneven
from tests.posterior_cases import PROBLEMS, normal


def made(name: str, target: Target) -> tuple[TangentLoss, int]:
    dense = Dense(name, target)
    return TangentLoss(Points(dense.training, target), uneven(dense.size), SCALE), dense.size


@pytest.mark.parametrize("target", ["affine", "simplified"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_score_is_the_derivative_of_the_loss_at_any_noise(name: str, target: Target) -> None:
    loss, size = made(name, target)
    w, step = somewhere(size), 1e-5 * normal(size, seed=8)
    with torch.no_grad():
        here, ahead, behind = (loss.evaluate(w + t * step) for t in (0.0, 1.0, -1.0))
    slope = (ahead.loss - behind.loss) / 2
    assert slope == pytest.approx(-float(here.score @ step), rel=1e-5, abs=1e-10 * abs(here.loss))


@pytest.mark.parametrize("target", ["affine", "simplified"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_scores_of_the_pieces_add_up_to_it(name: str, target: Target) -> None:
    loss, size = made(name, target)
    w = somewhere(size)
    with torch.no_grad():
        pieces = [piece.score(w) for group in loss.batches(3) for piece in group]
        torch.testing.assert_close(torch.stack(pieces).sum(0), loss.evaluate(w).score)
