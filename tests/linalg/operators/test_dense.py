"""Dense: Cholesky until the eigendecomposition is known, one eigendecomposition for all copies."""

from __future__ import annotations

import pytest
import torch

from lapwing.ground.errors import NumericalError, ShapeError
from lapwing.linalg import Dense
from tests.linalg.cases import eye, normal, spd
from tests.operators import check_structured


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often each factorisation has run."""
    counts = {"eigh": 0, "cholesky_ex": 0}

    def count(name: str) -> None:
        run = getattr(torch.linalg, name)

        def counted(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
            counts[name] += 1
            return run(*args)

        monkeypatch.setattr(torch.linalg, name, counted)

    for name in counts:
        count(name)
    return counts


def test_one_cholesky_answers_everything(calls: dict[str, int]) -> None:
    operator, b = Dense(spd(5, 10.0)), normal(5)
    operator.solve(b)
    operator.logdet()
    operator.root() @ b
    operator.inverse_root() @ b
    assert calls == {"eigh": 0, "cholesky_ex": 1}


def test_copies_share_one_eigendecomposition(calls: dict[str, int]) -> None:
    operator, b = Dense(spd(5, 10.0)), normal(5)
    early = operator.shifted(1.0)  # made before there is anything to share
    operator.eigenvalues()
    for copy in (operator, early, operator.scaled(2.0), operator.scaled(3.0).shifted(0.5).shifted(0.5)):
        copy.logdet()
        copy.solve(b)
        copy.eigenvalues()
    operator.plus_diagonal(0.3 * torch.ones(5).double()).logdet()
    assert calls == {"eigh": 1, "cholesky_ex": 0}


def test_roots_are_cholesky_factors_whatever_was_asked_before() -> None:
    matrix, noise = spd(5, 10.0), normal(5, 2)
    operator = Dense(matrix)
    operator.eigenvalues()
    lower = torch.linalg.cholesky(matrix)
    torch.testing.assert_close(operator.root() @ noise, lower @ noise)
    torch.testing.assert_close(operator.inverse_root() @ noise, torch.linalg.solve(lower.mT, noise))


def test_a_singular_matrix_has_a_root_but_no_inverse() -> None:
    operator = Dense(torch.block_diag(spd(4, 10.0), torch.zeros(2, 2, dtype=torch.float64)))
    root = operator.root()
    torch.testing.assert_close(root @ root.T.dense(), operator.matrix)
    for question in (operator.inverse_root, operator.logdet, lambda: operator.solve(normal(6))):
        with pytest.raises(NumericalError, match=r"smallest eigenvalue.*larger prior precision"):
            question()


def test_rounding_below_zero_does_not_beat_a_tiny_shift() -> None:
    matrix = 1e6 * torch.diag(torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)) - 1e-9 * eye(3)
    operator = Dense(matrix).shifted(1e-12)  # Cholesky meets -1e-9 + 1e-12
    assert operator.logdet().item() == pytest.approx(
        torch.tensor([1e6, 1e6, 1e-12], dtype=torch.float64).log().sum().item()
    )
    torch.testing.assert_close(operator.solve(eye(3)[2]), 1e12 * eye(3)[2])
    covariance = operator.inverse_root() @ operator.inverse_root().T.dense()
    torch.testing.assert_close(covariance[2, 2], torch.tensor(1e12).double())


def test_an_indefinite_matrix_with_a_large_shift_is_fine() -> None:
    hessian = torch.diag(torch.tensor([-2.0, 1.0, 3.0], dtype=torch.float64))
    check_structured(Dense(hessian).shifted(2.5))
    with pytest.raises(NumericalError, match=r"smallest eigenvalue -0.5"):
        Dense(hessian).shifted(1.5).root()


def test_a_varying_diagonal_makes_a_new_matrix() -> None:
    matrix, values = spd(4, 10.0), torch.arange(4.0, dtype=torch.float64)
    total = Dense(matrix).scaled(2.0).shifted(1.0).plus_diagonal(values)
    torch.testing.assert_close(total.dense(), 2 * matrix + eye(4) + values.diag())
    torch.testing.assert_close(matrix, spd(4, 10.0))  # in place on nothing of the caller's


def test_gradient_of_a_constant_diagonal_reaches_each_entry() -> None:
    matrix = spd(4, 10.0)
    values = torch.ones(4, dtype=torch.float64, requires_grad=True)
    Dense(matrix).plus_diagonal(values).logdet().backward()
    torch.testing.assert_close(values.grad, torch.linalg.inv(matrix + eye(4)).diagonal())


@pytest.mark.parametrize("matrix", [torch.ones(2, 3), torch.ones(2), torch.ones(0, 0), torch.ones(1, 2, 2)])
def test_what_is_no_square_matrix(matrix: torch.Tensor) -> None:
    with pytest.raises(ShapeError, match=r"a square matrix \[d, d\].* Got torch.float32 \["):
        Dense(matrix)


def test_a_matrix_with_nan() -> None:
    operator = Dense(torch.full((2, 2), float("nan")))
    for question in (operator.logdet, operator.eigenvalues, operator.root):
        with pytest.raises(NumericalError, match="4 of 4 entries NaN"):
            question()


def test_the_inverse_and_its_root_entry_by_entry() -> None:
    operator = Dense(spd(5, 10.0)).shifted(0.5)
    torch.testing.assert_close(operator.written_inverse_root, operator.inverse_root().dense())
    torch.testing.assert_close(operator.written_inverse() @ operator.dense(), eye(5))
    singular = Dense(torch.zeros(3, 3).double())
    assert operator.has_cholesky and not singular.has_cholesky
    with pytest.raises(NumericalError, match="positive definite"):
        singular.written_inverse()
