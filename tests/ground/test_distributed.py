"""What processes say to each other; ``tests/laws/test_distributed.py`` starts some."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lapwing as lw
from lapwing.ground.files.records import checksum


def test_tensors_are_alike_however_they_lie_in_memory(generator: torch.Generator) -> None:
    column = torch.randn(5, 3, generator=generator)[:, 1]
    assert checksum(column) == checksum(column.clone()) != checksum(column.flip(0))


def recipe(**choices: Any) -> lw.HessianFree:
    """One of a function that is another object each time."""
    inner = lw.hessian_free.Descent(lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    return lw.HessianFree(**{"likelihood": lw.Gaussian(), "inner": inner, **choices})


ONES = torch.ones(2000)
"""So many that their words leave most out."""

NEAR = ONES.index_fill(0, torch.tensor(999), 1.00001)
"""The same but for the sixth digit of one."""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"prior": lw.Isotropic(1.0)}, {"prior": lw.Isotropic(1.0 + 1e-12)}),
        ({"prior": lw.DiagonalPrior(ONES)}, {"prior": lw.DiagonalPrior(NEAR)}),
        ({"likelihood": lw.Gaussian(1.0)}, {"likelihood": lw.Gaussian(2.0)}),
        ({"weights": lw.LastLayer()}, {"weights": lw.All()}),
        ({"seed": 0}, {"seed": 1}),
    ],
)
def test_recipes_are_alike_by_what_they_hold(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert checksum(recipe(**one)) == checksum(recipe(**one)) != checksum(recipe(**other))


@pytest.mark.parametrize(
    ("one", "other"),
    [((1.0, 21.0), (1.02, 1.0)), ((1, 23), (12, 3)), (((1,), 2), (1, (2,))), ([], ()), ({"a": 1}, ("a", 1))],
)
def test_parts_do_not_run_together(one: object, other: object) -> None:
    assert checksum(one) != checksum(other)


def test_sets_and_sparse_tensors_are_alike_by_what_they_hold() -> None:
    words = [f"word {i}" for i in range(50)]
    assert checksum(set(words)) == checksum(set(reversed(words))) != checksum(set(words[1:]))
    assert checksum(torch.eye(3).to_sparse()) == checksum(torch.eye(3)) != checksum(torch.ones(3, 3).to_sparse())
