"""Landmarks among candidates: by leverage, and by pivots; both find what uniform ones miss."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lapwing.structures.ella.landmarks import Landmarks, candidates, chosen, leverage
from tests.posterior_cases import normal


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def crowd() -> Tensor:
    """The kernel of 90 rows that are nearly alike and 6 that are like no other."""
    rows = torch.zeros(96, 8, dtype=torch.float64)
    rows[:90, 0] = 1.0
    rows[:90, 1] = 0.01 * normal(90)
    rows[90:, 2:] = torch.eye(6, dtype=torch.float64)
    return rows @ rows.mT


def test_leverage_is_how_much_a_row_is_needed() -> None:
    gram = crowd()
    scores = leverage(gram, 7, 1e-6)
    ridge = float(torch.linalg.eigvalsh(gram)[:-7].sum()) / 7
    expected = (gram @ torch.linalg.inv(gram + ridge * torch.eye(96, dtype=torch.float64))).diagonal()
    torch.testing.assert_close(scores, expected)
    assert (scores[90:] > 0.99).all() and (scores[:90] < 0.1).all()


@pytest.mark.parametrize("landmarks", ["leverage", "pivoted"])
def test_rows_like_no_other_are_chosen(landmarks: Landmarks) -> None:
    found = [chosen(crowd(), landmarks, 10, 7, 1e-6, generator(seed)) for seed in range(10)]
    assert all(len(set(index.tolist())) == len(index) >= 8 for index in found)
    rare = sum(int((index >= 90).sum()) for index in found) / 10
    assert rare > 4.5  # of 10 uniform ones, 0.6


def test_leverage_draws_in_proportion_where_one_is_drawn() -> None:
    gram = torch.diag(torch.tensor([1.0, 1.0, 4.0], dtype=torch.float64))
    scores = leverage(gram, 1, 1e-6)
    counts = torch.zeros(3)
    for seed in range(300):
        counts[chosen(gram, "leverage", 1, 1, 1e-6, generator(seed))] += 1
    torch.testing.assert_close(counts.double() / 300, scores / scores.sum(), rtol=0.0, atol=0.08)


def test_pivots_end_where_the_kernel_is_exhausted() -> None:
    rows = normal(12, 3)
    assert len(chosen(rows @ rows.mT, "pivoted", 9, 3, 1e-6, generator())) == 3
    assert len(chosen(rows @ rows.mT, "leverage", 40, 3, 1e-6, generator())) == 12


def test_candidates_are_more_where_they_are_chosen_from() -> None:
    assert [candidates(kind, 5) for kind in ("uniform", "leverage", "pivoted")] == [5, 20, 20]
