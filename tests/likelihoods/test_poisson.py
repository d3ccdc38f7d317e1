"""Poisson: counts with a log rate."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import poisson_nll_loss

from lapwing.ground.errors import DataError, ShapeError
from lapwing.likelihoods import Poisson


def test_nll_is_the_poisson_log_probability() -> None:
    outputs = torch.randn(5, 2, dtype=torch.float64)
    targets = torch.randint(0, 9, (5, 2)).double()
    expected = poisson_nll_loss(outputs, targets, reduction="none") + torch.lgamma(targets + 1)
    torch.testing.assert_close(Poisson().nll(outputs, targets), expected.sum(-1))


def test_targets_may_be_integers() -> None:
    outputs = torch.zeros(3, 1)
    targets = Poisson().canonical_targets(outputs, torch.tensor([0, 3, 7]))
    assert targets.tolist() == [[0.0], [3.0], [7.0]] and targets.dtype == torch.float32
    Poisson().check(outputs, targets)
    Poisson().check(outputs, targets.long())
    assert Poisson().count(targets) == 3


def test_what_is_not_a_count_is_refused() -> None:
    with pytest.raises(DataError, match=r"counts 0, 1, 2.*Got 2 other targets, the first -1.*Gaussian\(\)"):
        Poisson().check(torch.zeros(1, 3), torch.tensor([[1.0, -1.0, 0.5]]))
    with pytest.raises(ShapeError, match="one count an output"):
        Poisson().check(torch.zeros(2, 3), torch.zeros(2, 2))


def test_rates_that_overflow_are_refused() -> None:
    Poisson().check(torch.full((1, 1), 88.0), torch.ones(1, 1))
    with pytest.raises(DataError, match=r"log rates below 89.*Got a log rate of 1000"):
        Poisson().check(torch.full((1, 1), 1e3), torch.ones(1, 1))
