"""What all structured operators share, Diagonal, and eigendecompositions: lazy, float64, once."""

from __future__ import annotations

import pytest
import torch

from lapwing.ground.errors import ConfigError, NumericalError, ShapeError
from lapwing.linalg import Dense, Diagonal, Kronecker, LowRank, Structured
from lapwing.linalg.spectral import TILE, decompose, symmetric
from lapwing.linalg.structured import nonnegative, positive
from tests.linalg.cases import normal, spd, spectrum

OPERATORS = [
    Diagonal(torch.ones(4)),
    Dense(torch.eye(4)),
    LowRank(torch.ones(4, 1)),
    Kronecker(*[torch.eye(2)] * 2),
]
every_operator = pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: type(operator).__name__)


@every_operator
@pytest.mark.parametrize("c", [-1.0, float("nan"), float("inf"), torch.ones(4), torch.tensor(-1.0)])
def test_scaling_by_what_is_no_scale(operator: Structured, c: float | torch.Tensor) -> None:
    with pytest.raises(ConfigError, match="finite scalar c >= 0"):
        operator.scaled(c)


@every_operator
@pytest.mark.parametrize("s", [float("nan"), float("-inf"), torch.ones(1)])
def test_shifting_by_what_is_no_scalar(operator: Structured, s: float | torch.Tensor) -> None:
    with pytest.raises(ConfigError, match=r"finite scalar to shift by.*plus_diagonal"):
        operator.shifted(s)


@every_operator
def test_adding_a_diagonal_of_another_size_or_dtype(operator: Structured) -> None:
    for other in (torch.ones(3), torch.ones(4).double()):
        with pytest.raises(ShapeError, match=r"a Diagonal of 4 entries, torch.float32. Got Diagonal"):
            operator.plus_diagonal(Diagonal(other))


@every_operator
def test_solving_for_what_does_not_fit(operator: Structured) -> None:
    with pytest.raises(ShapeError, match=r"vector \[4\].* Got shape \[2, 4\]"):
        operator.shifted(1.0).solve(torch.ones(2, 4))


@every_operator
def test_scaled_to_nothing_and_shifted(operator: Structured) -> None:
    torch.testing.assert_close(operator.scaled(0.0).shifted(2.0).solve(torch.ones(4)), torch.full((4,), 0.5))


@every_operator
def test_trace_sums_in_float64(operator: Structured) -> None:
    assert operator.trace() == 4.0
    assert operator.trace().dtype == torch.float64
    assert operator.T is operator


def test_diagonal_is_entrywise() -> None:
    values = torch.tensor([1.0, 4.0, 9.0])
    operator = Diagonal(values)
    assert operator.root().diagonal().tolist() == [1, 2, 3]
    assert operator.scaled(2.0).shifted(1.0).diagonal().tolist() == [3, 9, 19]
    assert operator.plus_diagonal(operator).diagonal().tolist() == [2, 8, 18]
    assert operator.logdet() == pytest.approx(torch.tensor(36.0).log().item())


def test_diagonal_that_is_constant() -> None:
    values = torch.full((3,), 0.1, dtype=torch.float64)
    constant = Diagonal(values).constant
    assert constant is not None
    assert constant.item() == pytest.approx(0.1, rel=1e-15)
    assert Diagonal(torch.tensor([1.0, 1.0, 1.1])).constant is None


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
    with pytest.raises(ShapeError, match=r"diagonal entries \[d\], floating point and not empty"):
        Diagonal(values)


def test_gradients_reach_the_matrices() -> None:
    b = normal(6, 2)

    def answers(matrix: torch.Tensor, root: torch.Tensor, base: torch.Tensor) -> tuple[torch.Tensor, ...]:
        spread = Diagonal(base.exp())
        kinds = (Dense(matrix @ matrix.mT).plus_diagonal(spread), LowRank(root, spread), spread)
        return tuple(answer for kind in kinds for answer in (kind.logdet(), kind.solve(b), kind.inverse_root() @ b))

    point = (spd(6, 10.0), normal(6, 2, seed=1), normal(6, seed=2))
    assert torch.autograd.gradcheck(answers, tuple(x.requires_grad_() for x in point))


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
    assert decompose(matrix.float()).values.isfinite().all()
    with pytest.raises(NumericalError, match="symmetric"):
        decompose(matrix)
