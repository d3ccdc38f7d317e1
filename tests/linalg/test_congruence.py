"""An operator between a root and its adjoint."""

from __future__ import annotations

import pytest
import torch

from lapwing.ground.errors import ShapeError
from lapwing.linalg import Dense, FunctionOperator
from lapwing.linalg.congruence import congruence
from tests.linalg.cases import normal, spd


def test_a_congruence_is_its_dense_matrix() -> None:
    matrix, w = spd(6, 10.0), normal(6, 4)
    root = FunctionOperator(lambda e: w @ e, lambda v: w.mT @ v, (6, 4), w)
    operator = congruence(Dense(matrix), root)
    torch.testing.assert_close(operator.dense(), w.mT @ matrix @ w)
    torch.testing.assert_close(operator.T.dense(), w.mT @ matrix @ w)
    with pytest.raises(ShapeError, match="a root with 6 rows"):
        congruence(Dense(matrix), root.T)
