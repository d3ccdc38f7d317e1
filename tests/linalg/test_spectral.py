"""Spectral decompositions: few columns, zero rows, one value for the rest."""

from __future__ import annotations

import pytest
import torch

from lapwing.ground.errors import ShapeError
from lapwing.linalg import Kronecker
from lapwing.linalg.spectral import Spectral, of_root, whole
from tests.linalg.cases import normal, spd, spectrum


def test_a_root_of_few_columns_has_the_spectrum_of_its_matrix() -> None:
    root = normal(7, 3) @ torch.tensor([[1.0, 2.0, 3.0, 0.0], [0, 1, 1, 1e-9], [0, 0, 0, 1]]).double()
    found = of_root(root)
    assert found.values.shape == (3,) and found.shape == (7, 7) and found.rest == 0.0
    torch.testing.assert_close(found.matrix, root @ root.mT)
    torch.testing.assert_close(found.spectrum.sort().values, torch.linalg.eigvalsh(root @ root.mT), atol=1e-12, rtol=0)
    torch.testing.assert_close(found.vectors.mT @ found.vectors, torch.eye(3).double())
    torch.testing.assert_close(found.diagonal, (root @ root.mT).diagonal())


def test_what_a_root_leaves_of_a_trace_is_spread_evenly() -> None:
    root = normal(5, 2)
    found = of_root(root, float(root.square().sum()) + 6.0)
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
    found = whole(matrix)
    assert sizes == [3] and found.values.shape == (2, 3)
    torch.testing.assert_close(found.matrix, matrix)
    torch.testing.assert_close(whole(spd(4, 9.0)).matrix, spd(4, 9.0))
    nothing = whole(torch.zeros(3, 3))
    assert nothing.values.numel() == 0 and not nothing.matrix.any() and sizes == [3, 4]


@pytest.mark.parametrize("rest", [0.0, 0.7])
def test_functions_of_it_act_on_what_no_pair_holds(rest: float) -> None:
    """Solves, roots and determinants of a product with few pairs on both sides are those of the whole matrices."""
    sides = [Spectral(spectrum(2, 9.0), torch.linalg.qr(normal(m, 2, seed=m)).Q, rest) for m in (3, 5)]
    few = Kronecker(*sides).scaled(2.0).shifted(0.3)
    dense = Kronecker(*(side.matrix for side in sides)).scaled(2.0).shifted(0.3)
    v = normal(15, 2)
    assert len(few.weights) > 15 and few.inverse_root().shape == (15, 15)
    for ours, theirs in ((few @ v, dense @ v), (few.solve(v), dense.solve(v))):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(few.logdet(), dense.logdet())
    torch.testing.assert_close(few.eigenvalues().sort().values, dense.eigenvalues().sort().values)
    for root, matrix in ((few.root(), dense.dense()), (few.inverse_root(), dense.dense().inverse())):
        torch.testing.assert_close(root @ root.T.dense(), matrix)


def test_pairs_that_do_not_belong_together() -> None:
    with pytest.raises(ShapeError, match=r"eigenvectors \[..., m, r\]. Got \[3\] and \[5, 2\]"):
        Spectral(torch.ones(3), torch.ones(5, 2))
