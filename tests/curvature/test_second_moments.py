"""Sums of second moments: of few columns by these, of groups by all their eigenpairs, of many rows by the leading."""

from __future__ import annotations

import pytest
import torch

from lapwing.curvature.second_moments import MomentSum
from lapwing.jacobian.layers.moments import ColumnMoment, RowMoment
from lapwing.linalg.operators.eigenbasis import Eigenbasis
from tests.linalg.cases import normal, spd


def test_groups_keep_all_their_pairs() -> None:
    moment = MomentSum(rank=1)
    total = torch.stack([spd(3, 9.0), spd(3, 9.0, seed=1)])
    moment.add_total(total.clone())
    found = moment.decomposed
    assert isinstance(found, Eigenbasis) and not moment.cut
    torch.testing.assert_close(found.matrix, total)


def test_few_columns_are_kept_until_they_are_many() -> None:
    parts = [normal(2, 1, 9, 2, seed=seed) for seed in range(3)]
    moment = MomentSum()
    for number, x in enumerate(parts):
        added = ColumnMoment(x)
        assert added.few
        moment.add(added)
        assert (moment.effort == 9 * 9**3) == (number > 0)  # from the second on as many as it has rows
    expected = sum(torch.einsum("npit,npjt->ij", x, x) for x in parts)
    torch.testing.assert_close(moment.total[0] if moment.total.ndim == 3 else moment.total, expected)


@pytest.mark.parametrize(("share", "kept"), [(0.1, False), (0.5, True), (None, True)])
def test_columns_of_which_many_will_come_are_not_put_off(share: float | None, kept: bool) -> None:
    """Two of nine rows, where all would be twenty or four; the same sum either way."""
    parts = [normal(2, 1, 9, 1, seed=seed) for seed in range(5)]
    moment = MomentSum(together=2)
    for number, x in enumerate(parts):
        moment.add(ColumnMoment(x), share)
        if number == 0:
            assert (moment.effort < 9 * 9**3) == kept
    expected = sum(torch.einsum("npit,npjt->ij", x, x) for x in parts)
    torch.testing.assert_close(moment.total, expected)
    found = moment.decomposed
    assert isinstance(found, Eigenbasis)
    torch.testing.assert_close(found.matrix, expected)


def test_effort_of_leading_pairs_grows_with_their_square() -> None:
    """That of two products with them, of the factorisations of tall blocks, and of a square of as many rows."""
    efforts = list[int]()
    for rank in (1, 2, 4):
        moment = MomentSum(rank)
        moment.add_total(spd(9, 9.0))
        efforts.append(moment.effort)
    assert efforts == [2 * 81 + 36 * 9 + 9, 2 * 81 * 2 + 36 * 9 * 4 + 9 * 8, 9 * 9**3]


def test_rows_are_columns_of_a_second_moment() -> None:
    rows = normal(3, 8)
    added = RowMoment(rows)
    assert added.few and not RowMoment(rows[:, :5]).few
    torch.testing.assert_close(added.total(), rows.mT @ rows)
    torch.testing.assert_close(added.columns(), rows.mT)
