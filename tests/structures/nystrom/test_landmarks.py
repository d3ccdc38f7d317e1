"""Landmarks: blocks of the kernel between them, how they are chosen, what they span."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.curvature import tangent_features as made
from lapwing.ground.data.sources import Data
from lapwing.ground.errors import TooLargeError
from lapwing.structures.nystrom.landmarks import (
    LandmarkRows,
    Landmarks,
    drawn_landmarks,
    gram_block,
    landmark_candidates,
    leverage,
)
from lapwing.structures.nystrom.reservoir import Reservoir, fill
from tests.posterior_cases import Linearised, normal, problem, refused


def landmarks(max_bytes: int = 2**31, size: int = 11, **amounts: int) -> tuple[LandmarkRows, torch.Tensor]:
    """Landmarks, and their rows in the prior's units."""
    case = problem("images")
    posterior = case.fit(lw.Laplace(case.likelihood, structure=lw.Diagonal()))
    pool = Reservoir(size, 3, torch.Generator().manual_seed(0))
    fill(Data(case.batches()), pool)
    deviations = normal(posterior.network.size, seed=3).exp()
    dense = Linearised(case, posterior.network).jacobian(case.x)[pool.pairs.examples, pool.pairs.outputs]
    return LandmarkRows(posterior.model, pool.pairs, deviations, max_bytes, **amounts), dense * deviations


@pytest.mark.parametrize("max_bytes", [2**31, 8 * 51 * 6, 8 * 11**2])
def test_is_that_of_the_dense_rows(max_bytes: int) -> None:
    rows, dense = landmarks(max_bytes, together=4, strip=64)
    assert rows.all_fit == (max_bytes == 2**31)
    assert len(range(11)[rows.places[0]]) == (4 if rows.all_fit else max_bytes // (2 * 8 * 51))
    torch.testing.assert_close(rows.gram(), dense @ dense.mT)
    weights = normal(11, 3)
    torch.testing.assert_close(rows.combined(weights), rows.deviations[:, None] * (dense.mT @ weights))
    some = torch.tensor([8, 1, 5])
    torch.testing.assert_close(rows.take(some).gram(), dense[some] @ dense[some].mT)


@pytest.mark.parametrize("max_bytes", [2**31, 8 * 51 * 6])
def test_rows_that_fit_are_made_once(max_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    usual = made.pair_rows
    monkeypatch.setattr(
        "lapwing.structures.nystrom.landmarks.pair_rows", lambda *given: counted.append(len(given[-1])) or usual(*given)
    )
    rows, _ = landmarks(max_bytes)
    rows.gram()
    rows.combined(normal(11, 2))
    if max_bytes == 2**31:
        assert sum(counted) == 11
    else:
        assert max(counted) <= 3 and sum(counted) > 2 * 11


def test_is_added_up_in_double() -> None:
    left = torch.full((2, 4000), 1.0) + 1e-3 * torch.randn(2, 4000)
    found = gram_block(left, left)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, left.double() @ left.double().mT, rtol=1e-13, atol=0.0)


def test_one_that_does_not_fit_is_refused() -> None:
    with refused(TooLargeError, "967 bytes"):
        landmarks(967)


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
    found = [drawn_landmarks(crowd(), landmarks, 10, 7, 1e-6, generator(seed)) for seed in range(10)]
    assert all(len(set(index.tolist())) == len(index) >= 8 for index in found)
    rare = sum(int((index >= 90).sum()) for index in found) / 10
    assert rare > 4.5  # of 10 uniform ones, 0.6


def test_leverage_draws_in_proportion_where_one_is_drawn() -> None:
    gram = torch.diag(torch.tensor([1.0, 1.0, 4.0], dtype=torch.float64))
    scores = leverage(gram, 1, 1e-6)
    counts = torch.zeros(3)
    for seed in range(300):
        counts[drawn_landmarks(gram, "leverage", 1, 1, 1e-6, generator(seed))] += 1
    torch.testing.assert_close(counts.double() / 300, scores / scores.sum(), rtol=0.0, atol=0.08)


def test_pivots_end_where_the_kernel_is_exhausted() -> None:
    rows = normal(12, 3)
    assert len(drawn_landmarks(rows @ rows.mT, "pivoted", 9, 3, 1e-6, generator())) == 3
    assert len(drawn_landmarks(rows @ rows.mT, "leverage", 40, 3, 1e-6, generator())) == 12


def test_candidates_are_more_where_they_are_chosen_from() -> None:
    assert [landmark_candidates(kind, 5) for kind in ("uniform", "leverage", "pivoted")] == [5, 20, 20]
