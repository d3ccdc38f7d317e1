"""Quadratic forms of inverses from rows, and from what rows are outer products of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from lapwing.linalg import BlockDiagonal, Dense, Diagonal, Kronecker, LowRank, Structured
from lapwing.linalg.operators.eigenbasis import decompose_root
from tests.linalg.cases import CASES, normal, shuffled, spd

OUTER = (3, 4)
"""Outputs and inputs."""


@pytest.mark.parametrize("name", CASES)
def test_a_form_is_that_of_the_dense_inverse(name: str) -> None:
    operator, matrix = CASES[name](10.0, 0)
    rows = normal(2, 3, len(matrix), seed=5)
    form = operator.inverse_form()
    expected = rows @ torch.linalg.solve(matrix, rows.mT)
    torch.testing.assert_close(form(rows), expected, rtol=1e-8, atol=1e-8)
    kept = type(form).__name__, {key: value.dtype for key, value in form.state_dict().items()}
    assert all(kind in (torch.float64, torch.int64) for kind in kept[1].values()), kept


def outer_cases() -> dict[str, Structured]:
    c, i = OUTER
    d = c * i
    order = torch.randperm(d, generator=torch.Generator().manual_seed(0))
    few = replace(decompose_root(normal(i, 2, seed=3)), rest=0.4)
    pairs = torch.arange(d).view(c, i)
    apart = (pairs[[2, 0]].flatten(), pairs[[1]].flatten())
    beside = (pairs[:, :3].flatten(), pairs[:, 3:].flatten())
    return {
        "dense": Dense(spd(d, 10.0)),
        "diagonal": Diagonal(shuffled(d, 1)),
        "low rank": LowRank(normal(d, 3), Diagonal(shuffled(d, 2))),
        "Kronecker": Kronecker(spd(c, 10.0), spd(i, 5.0), 0.7, 0.2),
        "few pairs": Kronecker(shuffled(c, 0), few, 0.7, 0.2),
        "outputs apart": BlockDiagonal(
            (Kronecker(spd(2, 10.0), spd(i, 5.0), shift=0.1), Kronecker(shuffled(1, 0), spd(i, 5.0), shift=0.1)), apart
        ),
        "dense outputs apart": BlockDiagonal((Dense(spd(2 * i, 10.0)), Diagonal(shuffled(i, 0))), apart),
        "bias beside": BlockDiagonal(
            (Kronecker(spd(c, 10.0), spd(3, 5.0), shift=0.1), Kronecker(spd(c, 4.0, 1), spd(1, 1.0), shift=0.3)), beside
        ),
        "dense, moved": BlockDiagonal((Dense(spd(d, 10.0)),), (order,)),
    }


@pytest.mark.parametrize("name", outer_cases())
def test_a_form_of_outer_products_is_that_of_their_rows(name: str) -> None:
    c, i = OUTER
    form: Any = outer_cases()[name].inverse_form()
    places = torch.randperm(c * i, generator=torch.Generator().manual_seed(1)).view(c, i)
    if "Kronecker" in name or name in ("few pairs", "outputs apart", "bias beside"):
        places = torch.arange(c * i).view(c, i)
    a = normal(5, i, seed=6)
    rows = a.new_zeros(5, c, c * i)
    for output in range(c):
        rows[:, output, places[output]] = a
    torch.testing.assert_close(form.of_outer_products(places)(a), form(rows), rtol=1e-10, atol=1e-12)
