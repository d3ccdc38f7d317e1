"""Diagonal matrices."""

from __future__ import annotations

import pytest
import torch

from lapwing.ground.errors import NumericalError, ShapeError
from lapwing.linalg import Diagonal
from lapwing.linalg.operators.base import common_value


def test_diagonal_is_entrywise() -> None:
    values = torch.tensor([1.0, 4.0, 9.0])
    operator = Diagonal(values)
    assert operator.root().diagonal().tolist() == [1, 2, 3]
    assert operator.scaled(2.0).shifted(1.0).diagonal().tolist() == [3, 9, 19]
    assert operator.plus_diagonal(values).diagonal().tolist() == [2, 8, 18]
    assert operator.logdet() == pytest.approx(torch.tensor(36.0).log().item())


def test_diagonal_that_is_constant() -> None:
    values = torch.full((3,), 0.1, dtype=torch.float64)
    constant = common_value(values)
    assert constant is not None
    assert constant.item() == pytest.approx(0.1, rel=1e-15)
    assert common_value(torch.tensor([1.0, 1.0, 1.1])) is None


def test_diagonal_that_is_not_positive() -> None:
    singular, negative = Diagonal(torch.tensor([1.0, 0.0])), Diagonal(torch.tensor([1.0, -2.0]))
    assert singular.root().diagonal().tolist() == [1, 0]
    for question in (singular.logdet, singular.inverse_root, lambda: singular.solve(torch.ones(2))):
        with pytest.raises(NumericalError, match="smallest eigenvalue 0"):
            question()
    with pytest.raises(NumericalError, match="smallest eigenvalue -2"):
        negative.root()


@pytest.mark.parametrize("values", [torch.ones(2, 2), torch.ones(0), torch.tensor(1.0), torch.tensor([1, 2])])
def test_values_that_are_no_diagonal(values: torch.Tensor) -> None:
    with pytest.raises(ShapeError, match=r"diagonal entries \[d\], floating point"):
        Diagonal(values)
