"""Eigenvalues and eigenvectors: few columns, zero rows, one value for the rest."""

from __future__ import annotations

import pytest
import torch

from lapwing.ground.errors import NumericalError, ShapeError
from lapwing.linalg import Kronecker
from lapwing.linalg.checks import symmetric
from lapwing.linalg.operators.eigenbasis import Eigenbasis, decompose, decompose_nonzero, decompose_root
from tests.linalg.cases import normal, spd, spectrum


def test_a_root_of_few_columns_has_the_spectrum_of_its_matrix() -> None:
    root = normal(7, 3) @ torch.tensor([[1.0, 2.0, 3.0, 0.0], [0, 1, 1, 1e-9], [0, 0, 0, 1]]).double()
    found = decompose_root(root)
    assert found.values.shape == (3,) and found.shape == (7, 7) and found.rest == 0.0
    torch.testing.assert_close(found.matrix, root @ root.mT)
    torch.testing.assert_close(found.spectrum.sort().values, torch.linalg.eigvalsh(root @ root.mT), atol=1e-12, rtol=0)
    torch.testing.assert_close(found.vectors.mT @ found.vectors, torch.eye(3).double())
    torch.testing.assert_close(found.diagonal, (root @ root.mT).diagonal())


def test_what_a_root_leaves_of_a_trace_is_spread_evenly() -> None:
    root = normal(5, 2)
    found = decompose_root(root, float(root.square().sum()) + 6.0)
    assert found.rest == pytest.approx(2.0) and found.error == pytest.approx(6.0)
    basis = torch.linalg.qr(root).Q
    torch.testing.assert_close(found.matrix, root @ root.mT + 2.0 * (torch.eye(5).double() - basis @ basis.mT))
    torch.testing.assert_close(found.completed.matrix, found.matrix)
    assert found.completed.others == 0
    assert float(found.spectrum.sum()) == pytest.approx(float(found.diagonal.sum()))


def test_rows_of_zeros_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    run = torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda matrix: (sizes.append(matrix.shape[-1]), run(matrix))[1])
    matrix = torch.zeros(2, 7, 7, dtype=torch.float64)
    matrix[0, 2:4, 2:4], matrix[1, 3:5, 3:5] = spd(2, 9.0), spd(2, 9.0, seed=1)
    found = decompose_nonzero(matrix)
    assert sizes == [3] and found.values.shape == (2, 3)
    torch.testing.assert_close(found.matrix, matrix)
    torch.testing.assert_close(decompose_nonzero(spd(4, 9.0)).matrix, spd(4, 9.0))
    nothing = decompose_nonzero(torch.zeros(3, 3))
    assert nothing.values.numel() == 0 and not nothing.matrix.any() and sizes == [3, 4]


@pytest.mark.parametrize("rest", [0.0, 0.7])
def test_functions_of_it_act_on_what_no_pair_holds(rest: float) -> None:
    """Solves, roots and determinants of a product with few pairs on both sides are those of the whole matrices."""
    sides = [Eigenbasis(spectrum(2, 9.0), torch.linalg.qr(normal(m, 2, seed=m)).Q, rest) for m in (3, 5)]
    few = Kronecker(*sides).scaled(2.0).shifted(0.3)
    dense = Kronecker(*(side.matrix for side in sides)).scaled(2.0).shifted(0.3)
    v = normal(15, 2)
    assert len(few.basis_eigenvalues) > 15 and few.inverse_root().shape == (15, 15)
    for ours, theirs in ((few @ v, dense @ v), (few.solve(v), dense.solve(v))):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(few.logdet(), dense.logdet())
    torch.testing.assert_close(few.eigenvalues().sort().values, dense.eigenvalues().sort().values)
    for root, matrix in ((few.root(), dense.dense()), (few.inverse_root(), dense.dense().inverse())):
        torch.testing.assert_close(root @ root.T.dense(), matrix)


def test_pairs_that_do_not_belong_together() -> None:
    with pytest.raises(ShapeError, match=r"eigenvectors \[..., m, r\]. Got \[3\] and \[5, 2\]"):
        Eigenbasis(torch.ones(3), torch.ones(5, 2))


def test_values_and_vectors() -> None:
    matrix = spd(5, 100.0)
    basis = decompose(matrix)
    torch.testing.assert_close(basis.values, spectrum(5, 100.0).flip(0))
    torch.testing.assert_close(basis.vectors @ basis.values.diag() @ basis.vectors.mT, matrix)


def test_float32_is_decomposed_in_float64() -> None:
    matrix = spd(5, 100.0).float()
    basis = decompose(matrix)
    assert basis.values.dtype == basis.vectors.dtype == torch.float64
    torch.testing.assert_close(basis.values, torch.linalg.eigvalsh(matrix.double()), rtol=1e-6, atol=0)


def test_a_vector_is_a_diagonal_matrix() -> None:
    basis = decompose(torch.tensor([3.0, 0.0, 2.0]))
    assert basis.values.tolist() == [3, 0, 2]
    assert basis.vectors.tolist() == [1, 1, 1]


def test_only_rounding_is_clamped() -> None:
    assert decompose(torch.diag(torch.tensor([1.0, -1e-5]))).values.tolist() == [0, 1]
    assert decompose(torch.diag(torch.tensor([1.0, -1e-5])).double()).values[0] < 0
    assert decompose(torch.tensor([1.0, -1e-5])).values.tolist() == [1, 0]
    batch = torch.stack([torch.diag(torch.tensor([1.0, -1e-5])), torch.diag(torch.tensor([1e3, -1e-2]))])
    assert decompose(batch).values.tolist() == [[0, 1], [0, 1000]]
    assert decompose(torch.diag(torch.tensor([1.0, -0.5]))).values.tolist() == [-0.5, 1]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_matrix_that_is_not_finite(bad: float) -> None:
    matrix = spd(3, 10.0)
    matrix[0, 1] = matrix[1, 0] = bad
    with pytest.raises(NumericalError, match="2 of 9 entries NaN or infinite"):
        decompose(matrix)
    matrix[1, 0] = 1.0  # differs from its mirror by no more than the largest entry, which is no bound
    with pytest.raises(NumericalError, match="1 of 9 entries NaN or infinite"):
        decompose(matrix)


def test_a_matrix_that_is_not_symmetric() -> None:
    with pytest.raises(NumericalError, match=r"Expected a symmetric matrix. Got entries that differ"):
        decompose(normal(3, 3))
    rounded = spd(3, 10.0)
    rounded[0, 1] += 1e-12
    torch.testing.assert_close(symmetric(rounded), symmetric(rounded).mT, rtol=0, atol=0)


def test_asymmetry_is_judged_by_the_precision_of_the_matrix() -> None:
    matrix = spd(3, 10.0)
    matrix[0, 1] += 1e-5
    assert decompose(matrix.float()).values.isfinite().all()
    with pytest.raises(NumericalError, match="symmetric"):
        decompose(matrix)
