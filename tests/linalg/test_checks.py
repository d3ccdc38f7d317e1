"""The symmetric part of a matrix, and signs of its eigenvalues."""

from __future__ import annotations

import math

import pytest
import torch

from lapwing.ground.errors import NumericalError
from lapwing.linalg.checks import TILE, is_symmetric, nonnegative, positive, symmetric
from tests.linalg.cases import normal


def test_the_symmetric_part_of_more_than_one_tile() -> None:
    matrix = normal(2 * TILE + 3, 2 * TILE + 3)
    matrix = matrix + matrix.mT
    noisy = matrix.float() + 1e-6 * normal(*matrix.shape, seed=1).float()
    torch.testing.assert_close(symmetric(noisy), (noisy.double() + noisy.double().mT) / 2, rtol=0, atol=0)
    for place in ((-1, 0), (0, -1), (1, 0)):
        other = noisy.clone()
        other[place] += 1.0
        with pytest.raises(NumericalError, match="symmetric"):
            symmetric(other)


def test_products_tell_whether_a_matrix_is_symmetric() -> None:
    root = normal(301, 40)
    matrix = root @ root.mT
    assert is_symmetric(matrix)
    assert is_symmetric(matrix * (1 + 1e-16 * normal(301, 301, seed=1)))
    for place in ((0, 300), (7, 8), (300, 0)):
        for apart in (1e-9 * float(matrix.max()), math.nan):
            other = matrix.clone()
            other[place] += apart
            assert not is_symmetric(other)
    assert not is_symmetric(matrix.float()), "its products say less than its entries"
    assert not is_symmetric(matrix.requires_grad_())


def test_signs_of_a_spectrum() -> None:
    assert positive(torch.tensor([1.0, 2.0])).tolist() == [1, 2]
    assert nonnegative(torch.tensor([0.0, 2.0])).tolist() == [0, 2]
    with pytest.raises(NumericalError, match=r"positive definite matrix. Got smallest eigenvalue 0 \(largest 2\)"):
        positive(torch.tensor([2.0, 0.0]))
    with pytest.raises(NumericalError, match=r"positive semi-definite matrix. Got smallest eigenvalue -0.1"):
        nonnegative(torch.tensor([0.0, -0.1]))
    with pytest.raises(NumericalError, match="smallest eigenvalue nan"):
        positive(torch.tensor([1.0, float("nan")]))
