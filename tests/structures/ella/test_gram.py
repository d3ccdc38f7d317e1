"""The Gram matrix of landmarks and combinations of their rows, whether rows are kept or made again."""

from __future__ import annotations

import pytest
import torch

import lapwing as lw
from lapwing.curvature import pairs as made
from lapwing.ground.data import Data
from lapwing.ground.errors import TooLargeError
from lapwing.structures.ella import LandmarkRows, Reservoir, fill, gram
from tests.posterior_cases import Linearised, normal, problem, refused


def landmarks(max_bytes: int = 2**31, size: int = 11) -> tuple[LandmarkRows, torch.Tensor]:
    """Landmarks, and their rows in the prior's units."""
    case = problem("images")
    posterior = case.fit(lw.Laplace(case.likelihood, structure=lw.Diagonal()))
    pool = Reservoir(size, 3, torch.Generator().manual_seed(0))
    fill(Data(case.batches()), pool)
    deviations = normal(posterior.network.size, seed=3).exp()
    dense = Linearised(case, posterior.network).jacobian(case.x)[pool.pairs.examples, pool.pairs.outputs]
    return LandmarkRows(posterior.training, pool.pairs, deviations, max_bytes), dense * deviations


@pytest.mark.parametrize("max_bytes", [2**31, 8 * 51 * 6, 8 * 11**2])
def test_is_that_of_the_dense_rows(max_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gram, "STRIP", 64)
    monkeypatch.setattr(gram, "ROWS", 4)
    rows, dense = landmarks(max_bytes)
    assert rows.fit == (max_bytes == 2**31)
    assert len(range(11)[rows.places[0]]) == (4 if rows.fit else max_bytes // (2 * 8 * 51))
    torch.testing.assert_close(rows.gram(), dense @ dense.mT)
    weights = normal(11, 3)
    torch.testing.assert_close(rows.combined(weights), rows.deviations[:, None] * (dense.mT @ weights))
    some = torch.tensor([8, 1, 5])
    torch.testing.assert_close(rows.at(some).gram(), dense[some] @ dense[some].mT)


@pytest.mark.parametrize("max_bytes", [2**31, 8 * 51 * 6])
def test_rows_that_fit_are_made_once(max_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    usual = made.pair_rows
    monkeypatch.setattr(gram, "pair_rows", lambda *given: counted.append(len(given[-1])) or usual(*given))
    rows, _ = landmarks(max_bytes)
    rows.gram()
    rows.combined(normal(11, 2))
    if max_bytes == 2**31:
        assert sum(counted) == 11
    else:
        assert max(counted) <= 3 and sum(counted) > 2 * 11


def test_is_added_up_in_double() -> None:
    left = torch.full((2, 4000), 1.0) + 1e-3 * torch.randn(2, 4000)
    found = gram.product(left, left)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, left.double() @ left.double().mT, rtol=1e-13, atol=0.0)


def test_one_that_does_not_fit_is_refused() -> None:
    with refused(TooLargeError, expected="967 bytes", got="11 landmarks, which needs 968", hint="max_bytes"):
        landmarks(967)
