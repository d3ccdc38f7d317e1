"""Kronecker products in their eigenbasis, and independent blocks."""

from __future__ import annotations

import pytest
import torch

from lapwing.ground.errors import NumericalError, ShapeError, UnsupportedError
from lapwing.linalg import Kronecker
from tests.linalg.cases import normal, spd, spectrum


def test_acts_on_arrays_row_by_row() -> None:
    left, right, array = spd(3, 10.0), spd(4, 10.0, seed=1), normal(3, 4)
    product = Kronecker(left, right).scaled(2.0).shifted(0.5) @ array.reshape(-1)
    torch.testing.assert_close(product, (2 * left @ array @ right.mT + 0.5 * array).reshape(-1))


def test_groups_are_independent() -> None:
    left = torch.stack([spd(3, 10.0, seed) for seed in (0, 1)])
    right = torch.stack([spd(4, 10.0, seed) for seed in (2, 3)])
    arrays = normal(2, 3, 4)
    product = Kronecker(left, right) @ arrays.reshape(-1)
    torch.testing.assert_close(product.reshape(2, 3, 4), left @ arrays @ right.mT)


def test_copies_share_two_eigendecompositions(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[torch.Size] = []
    run = torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda matrix: (calls.append(matrix.shape), run(matrix))[1])
    operator = Kronecker(spd(3, 10.0), spd(4, 10.0))
    early = operator.scaled(3.0)  # made before there is anything to share
    for step in range(5):
        copy = operator.scaled(1.0 + step).shifted(0.1 * step)
        copy.logdet()
        copy.solve(normal(12))
        copy.inverse_root() @ normal(12)
    early.plus_diagonal(torch.ones(12).double()).logdet()
    assert calls == [(3, 3), (4, 4)]


def test_spectrum_lies_over_the_eigenvectors() -> None:
    left = torch.stack([spd(3, 10.0, seed) for seed in (0, 1)])
    operator = Kronecker(left, spd(4, 10.0)).scaled(2.0).shifted(0.5)
    assert operator.array_shape == (2, 3, 4)
    assert operator.spectrum.shape == (2, 3, 4)
    vectors = torch.einsum("pab,cd->pacbd", *(basis.vectors for basis in operator.bases))
    column = torch.zeros(2, 12, dtype=torch.float64)
    column[1] = vectors[1, :, :, 2, 1].reshape(-1)
    torch.testing.assert_close(operator @ column.reshape(-1), operator.spectrum[1, 2, 1] * column.reshape(-1))


def test_eigenvectors_come_in_the_shape_of_the_factors() -> None:
    operator = Kronecker(spd(3, 10.0).float(), spectrum(4, 10.0).float())
    left, right = (basis.vectors for basis in operator.bases)
    assert left.shape == (3, 3) and right.tolist() == [1, 1, 1, 1]
    assert operator.spectrum.shape == (1, 3, 4)
    assert operator.spectrum.dtype == torch.float64


def test_singular_factors_need_a_shift() -> None:
    left = torch.block_diag(spd(2, 10.0), torch.zeros(2, 2, dtype=torch.float64))
    operator = Kronecker(left, spd(3, 10.0))
    v = normal(12)
    torch.testing.assert_close(operator.root() @ (operator.root().T @ v), operator @ v)
    for question in (operator.logdet, operator.inverse_root, lambda: operator.solve(v)):
        with pytest.raises(NumericalError, match="smallest eigenvalue 0"):
            question()
    shifted = operator.shifted(1e-12)
    assert shifted.spectrum.min() >= 1e-12
    assert shifted.logdet().isfinite()


def test_adding_a_diagonal() -> None:
    operator = Kronecker(spd(2, 10.0), spd(3, 10.0))
    added = operator.plus_diagonal(torch.full((6,), 0.3, dtype=torch.float64))
    torch.testing.assert_close(added.dense(), operator.shifted(0.3).dense())
    with pytest.raises(UnsupportedError, match=r"values from 1 to 6. Try an Isotropic"):
        operator.plus_diagonal(torch.arange(1.0, 7.0, dtype=torch.float64))


@pytest.mark.parametrize(
    ("left", "right"),
    [((2, 3), (2, 2)), ((2, 2), (2, 3)), ((2, 2), ()), ((1, 2, 2, 2), (2,)), ((0, 0), (2, 2))],
)
def test_factors_that_are_not_square(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"a factor \[m, m\], \[p, m, m\]"):
        Kronecker(torch.ones(left), torch.ones(right))


def test_factors_that_do_not_belong_together() -> None:
    with pytest.raises(ShapeError, match=r"the same number p of blocks.*\[2, 3, 3\] and torch.float32 \[3, 2, 2\]"):
        Kronecker(torch.ones(2, 3, 3), torch.ones(3, 2, 2))
    with pytest.raises(ShapeError, match=r"one dtype.*torch.float32 \[2\] and torch.float64 \[2\]"):
        Kronecker(torch.ones(2), torch.ones(2).double())


def test_gradient_of_a_constant_diagonal_spreads_evenly() -> None:
    operator = Kronecker(spd(2, 10.0), spd(3, 10.0))
    values = torch.ones(6, dtype=torch.float64, requires_grad=True)
    operator.plus_diagonal(values).logdet().backward()
    mean = (1 / (operator.eigenvalues() + 1)).mean()
    torch.testing.assert_close(values.grad, mean.expand(6))


def test_what_is_pooled_keeps_its_shift() -> None:
    one, other = Kronecker(spd(2, 10.0), spd(3, 10.0), 0.2), Kronecker(spd(2, 10.0), spd(3, 10.0), 0.5)
    pooled = one.shifted(0.7).pooled(other)
    torch.testing.assert_close(pooled.trace(), one.trace() + 6 * 0.7 + other.trace())


def test_shifts_add_up_before_they_are_shared_out_among_factors() -> None:
    left, right = spd(2, 10.0), spd(3, 30.0, seed=1)
    plain = Kronecker(left, right, 0.2).damped_by_factors()
    once = plain.shifted(0.7)
    torch.testing.assert_close(plain.shifted(0.3).shifted(0.4).dense(), once.dense())
    torch.testing.assert_close(plain.shifted(0.2).plus_diagonal(torch.full((6,), 0.5).double()).dense(), once.dense())
    torch.testing.assert_close(plain.shifted(0.35).scaled(2.0).dense(), plain.scaled(2.0).shifted(0.7).dense())
    assert not once.shifts_exactly
    balance = (0.2 * left.trace() / 2 / (right.trace() / 3)).sqrt()
    by_left = 0.2 * left + balance * 0.7**0.5 * torch.eye(2)
    by_right = right + 0.7**0.5 / balance * torch.eye(3)
    torch.testing.assert_close(once.dense(), torch.kron(by_left, by_right))


def test_what_was_added_before_factors_share_shifts_stays() -> None:
    operator = Kronecker(spd(2, 10.0), spd(3, 10.0))
    shared = operator.shifted(0.5).damped_by_factors().shifted(0.3)
    expected = operator.damped_by_factors().shifted(0.3).dense() + 0.5 * torch.eye(6)
    torch.testing.assert_close(shared.dense(), expected)
