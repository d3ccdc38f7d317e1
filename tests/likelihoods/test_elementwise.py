"""Bernoulli, several labels at once, and Poisson, counts with a log rate."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, poisson_nll_loss

from lapwing.ground.errors import DataError, ShapeError
from lapwing.likelihoods import Bernoulli, Poisson


def test_nll_is_torchs_binary_cross_entropy_summed_over_labels() -> None:
    outputs = torch.randn(5, 3, dtype=torch.float64)
    targets = (torch.randn(5, 3) > 0).double()
    outputs[0, 0], outputs[0, 1] = 39.0, -41.0
    expected = binary_cross_entropy_with_logits(outputs, targets, reduction="none").sum(-1)
    torch.testing.assert_close(Bernoulli().nll(outputs, targets), expected)


def test_extreme_logits_stay_finite() -> None:
    outputs = torch.tensor([[1e4, -1e4, 40.0]])
    targets = torch.tensor([[0.0, 1.0, 1.0]])
    assert float(Bernoulli().nll(outputs, targets)) == 2e4
    for value in (
        Bernoulli().score(outputs, targets),
        Bernoulli().hessian(outputs),
        Bernoulli().root(outputs),
    ):
        assert bool(torch.isfinite(value).all())
    assert float(Bernoulli().score(outputs, targets)[0, 2]) == pytest.approx(torch.tensor(-40.0).exp().item())


def test_labels_may_be_bools_or_integers() -> None:
    outputs = torch.zeros(2, 2)
    for dtype in (torch.bool, torch.long, torch.float64):
        targets = Bernoulli().canonical_targets(outputs, torch.eye(2).to(dtype))
        assert targets.dtype == torch.float32
        Bernoulli().check(outputs, targets)
    assert Bernoulli().canonical_targets(torch.zeros(3, 1), torch.ones(3)).shape == (3, 1)
    assert Bernoulli().count(torch.eye(2)) == 4


def test_other_labels_are_refused() -> None:
    with pytest.raises(DataError, match=r"0 or 1 for Bernoulli\. Got 2 others, the first 2"):
        Bernoulli().check(torch.zeros(1, 3), torch.tensor([[2.0, 1.0, 0.5]]))
    with pytest.raises(DataError, match="the first nan"):
        Bernoulli().check(torch.zeros(1, 1), torch.tensor([[float("nan")]]))
    with pytest.raises(ShapeError, match=r"targets of shape \[4, 3\]\. Got shape \[4\].*Categorical\(\)"):
        Bernoulli().canonical_targets(torch.zeros(4, 3), torch.zeros(4))


def test_nll_is_the_poisson_log_probability() -> None:
    outputs = torch.randn(5, 2, dtype=torch.float64)
    targets = torch.randint(0, 9, (5, 2)).double()
    expected = poisson_nll_loss(outputs, targets, reduction="none") + torch.lgamma(targets + 1)
    torch.testing.assert_close(Poisson().nll(outputs, targets), expected.sum(-1))


def test_counts_may_be_integers() -> None:
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
        Poisson().canonical_targets(torch.zeros(2, 3), torch.zeros(2, 2))


def test_rates_that_overflow_are_refused() -> None:
    Poisson().check(torch.full((1, 1), 88.0), torch.ones(1, 1))
    with pytest.raises(DataError, match=r"log rates below 89.*Got a log rate of 1000"):
        Poisson().check(torch.full((1, 1), 1e3), torch.ones(1, 1))
