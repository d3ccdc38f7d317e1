"""Mini-batch descent on losses of a few numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from lapwing.linalg import Diagonal
from lapwing.linear.model import gathered
from lapwing.linear.solvers import CG, SGD
from lapwing.linear.solvers.newton import gradient_of, minimise
from lapwing.linear.solvers.stochastic import Piece, descend_loss, descend_quadratic
from tests.linear.solvers.test_newton import Margins
from tests.posterior_cases import normal

PRIOR = Diagonal(torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64))


@pytest.mark.parametrize("start", [torch.zeros(3, dtype=torch.float64), normal(3, seed=4)])
def test_a_quadratic_is_solved_until_nothing_is_left_of_the_gradient(start: Tensor) -> None:
    loss = Margins(normal(30, 3) * torch.tensor([9.0, 3.0, 1.0], dtype=torch.float64), squares=True)
    exact = torch.linalg.solve(loss.x.mT @ loss.x + PRIOR.dense(), loss.x.sum(0))
    solver = SGD(epochs=800, batch=30, rtol=0.1, momentum=0.9)
    found = descend_quadratic(loss, loss.evaluate(start), PRIOR, solver, rtol=1e-4)
    assert found.stopped == "converged" and found.gradient <= 1e-4
    assert gradient_of(found.point, PRIOR)[1] == found.gradient
    torch.testing.assert_close(found.point.weights, exact, rtol=1e-3, atol=1e-5)


def test_noise_of_mini_batches_vanishes_with_what_is_left() -> None:
    loss = Margins(normal(200, 3), squares=True)
    exact = torch.linalg.solve(loss.x.mT @ loss.x + PRIOR.dense(), loss.x.sum(0))
    solver = SGD(epochs=200, batch=64, rtol=0.1)
    found = descend_quadratic(loss, loss.evaluate(normal(3, seed=4)), PRIOR, solver, rtol=1e-3)
    assert found.stopped == "converged"
    torch.testing.assert_close(found.point.weights, exact, rtol=2e-3, atol=1e-4)


def test_epochs_run_out_over_all_solves() -> None:
    loss = Margins(normal(30, 3) * torch.tensor([9.0, 3.0, 1.0], dtype=torch.float64), squares=True)
    found = descend_quadratic(loss, loss.evaluate(normal(3)), PRIOR, SGD(epochs=9, batch=30, rtol=0.5), rtol=1e-9)
    assert found.stopped in ("iterations", "stagnated") and found.gradient > 1e-9
    assert 1 <= found.iterations <= 9 and found.matvecs < 9 + 20


def test_unequal_mini_batches_count_by_their_examples() -> None:
    loss = Margins(3.0 * normal(50, 3))
    exact = minimise(loss, loss.evaluate(normal(3)), PRIOR, CG(), rtol=1e-10, steps=50).point.weights

    def batches(batch: int) -> Iterator[Iterator[Piece]]:
        blocks = [Margins(block) for block in loss.x.split(20)]
        return gathered([Piece(lambda w, of=of: of.evaluate(w).score, len(of.x)) for of in blocks], batch)

    found = descend_loss(loss, batches, loss.evaluate(normal(3)), PRIOR, SGD(epochs=150, batch=20), rtol=1e-4)
    assert found.iterations <= 3 * 150
    torch.testing.assert_close(found.point.weights, exact, rtol=0, atol=0.02)
