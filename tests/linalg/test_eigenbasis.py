"""Eigendecompositions: lazy, float64, once."""

from __future__ import annotations

import pytest
import torch

from lapwing.ground.errors import NumericalError
from lapwing.linalg.eigenbasis import Eigenbasis, nonnegative, positive, symmetric
from tests.linalg.cases import normal, spd, spectrum


def test_values_and_vectors() -> None:
    matrix = spd(5, 100.0)
    basis = Eigenbasis(matrix)
    assert not basis.known
    torch.testing.assert_close(basis.values, spectrum(5, 100.0).flip(0))
    assert basis.known
    torch.testing.assert_close(basis.vectors @ basis.values.diag() @ basis.vectors.mT, matrix)


def test_float32_is_decomposed_in_float64() -> None:
    matrix = spd(5, 100.0).float()
    basis = Eigenbasis(matrix)
    assert basis.values.dtype == basis.vectors.dtype == torch.float64
    torch.testing.assert_close(basis.values, torch.linalg.eigvalsh(matrix.double()), rtol=1e-6, atol=0)


def test_a_vector_is_a_diagonal_matrix() -> None:
    basis = Eigenbasis(torch.tensor([3.0, 0.0, 2.0]))
    assert basis.values.tolist() == [3, 0, 2]
    assert basis.vectors.tolist() == [1, 1, 1]


def test_only_rounding_is_clamped() -> None:
    assert Eigenbasis(torch.diag(torch.tensor([1.0, -1e-5]))).values.tolist() == [0, 1]
    assert Eigenbasis(torch.diag(torch.tensor([1.0, -1e-5])).double()).values[0] < 0
    assert Eigenbasis(torch.tensor([1.0, -1e-5])).values.tolist() == [1, 0]
    batch = torch.stack([torch.diag(torch.tensor([1.0, -1e-5])), torch.diag(torch.tensor([1e3, -1e-2]))])
    assert Eigenbasis(batch).values.tolist() == [[0, 1], [0, 1000]]
    assert Eigenbasis(torch.diag(torch.tensor([1.0, -0.5]))).values.tolist() == [-0.5, 1]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_matrix_that_is_not_finite(bad: float) -> None:
    matrix = spd(3, 10.0)
    matrix[0, 1] = matrix[1, 0] = bad
    with pytest.raises(NumericalError, match="2 of 9 entries NaN or infinite"):
        _ = Eigenbasis(matrix).values


def test_a_matrix_that_is_not_symmetric() -> None:
    with pytest.raises(NumericalError, match=r"Expected a symmetric matrix. Got entries that differ"):
        _ = Eigenbasis(normal(3, 3)).values
    rounded = spd(3, 10.0)
    rounded[0, 1] += 1e-12
    torch.testing.assert_close(symmetric(rounded), symmetric(rounded).mT, rtol=0, atol=0)


def test_signs_of_a_spectrum() -> None:
    assert positive(torch.tensor([1.0, 2.0])).tolist() == [1, 2]
    assert nonnegative(torch.tensor([0.0, 2.0])).tolist() == [0, 2]
    with pytest.raises(NumericalError, match=r"positive definite matrix. Got smallest eigenvalue 0 \(largest 2\)"):
        positive(torch.tensor([2.0, 0.0]))
    with pytest.raises(NumericalError, match=r"positive semi-definite matrix. Got smallest eigenvalue -0.1"):
        nonnegative(torch.tensor([0.0, -0.1]))
    with pytest.raises(NumericalError, match="smallest eigenvalue nan"):
        positive(torch.tensor([1.0, float("nan")]))


def test_asymmetry_is_judged_by_the_precision_of_the_matrix() -> None:
    matrix = spd(3, 10.0)
    matrix[0, 1] += 1e-5
    assert Eigenbasis(matrix.float()).values.isfinite().all()
    with pytest.raises(NumericalError, match="symmetric"):
        _ = Eigenbasis(matrix).values
