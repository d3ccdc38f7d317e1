"""What holds for both solvers of shifted systems."""

from __future__ import annotations

import pytest
import torch

from lapwing.ground.errors import ConfigError, NumericalError, ShapeError, UnsupportedError
from lapwing.linalg import Dense, Diagonal, FunctionOperator, LowRank
from lapwing.linalg.minres import shifted_minres
from lapwing.linalg.shifted_cg import shifted_conjugate_gradients
from lapwing.linalg.shifts import ShiftedSolver
from tests.linalg.cases import eye, normal, spd, spectrum

SHIFTS = torch.tensor([0.5, 0.0, 3.0], dtype=torch.float64)
every_solver = pytest.mark.parametrize("solver", [shifted_conjugate_gradients, shifted_minres])


@every_solver
def test_every_shift_and_column(solver: ShiftedSolver) -> None:
    matrix, b = spd(20, 100.0), normal(20, 4)
    solution = solver(Dense(matrix), b, SHIFTS, rtol=1e-10)
    expected = torch.stack([torch.linalg.solve(matrix + t * eye(20), b) for t in SHIFTS])
    torch.testing.assert_close(solution.value, expected, rtol=1e-7, atol=1e-7)
    assert solution.residual.shape == (3, 4)
    single = solver(Dense(matrix), b[:, 1], SHIFTS, rtol=1e-10)
    torch.testing.assert_close(single.value, expected[..., 1], rtol=1e-7, atol=1e-7)
    assert single.residual.shape == (3, 1)


@every_solver
def test_the_shift_multiplies_the_preconditioner(solver: ShiftedSolver) -> None:
    matrix, b = spd(20, 100.0), normal(20, 2)
    p = LowRank(normal(20, 3), Diagonal(spectrum(20, 10.0)))
    solution = solver(Dense(matrix), b, SHIFTS, rtol=1e-10, preconditioner=p)
    expected = torch.stack([torch.linalg.solve(matrix + t * p.dense(), b) for t in SHIFTS])
    torch.testing.assert_close(solution.value, expected, rtol=1e-7, atol=1e-7)


@every_solver
@pytest.mark.parametrize("steps", [1, 4, 11])
def test_the_residual_is_known_before_convergence(solver: ShiftedSolver, steps: int) -> None:
    matrix, b = spd(20, 1e3), normal(20, 2)
    p = Diagonal(spectrum(20, 10.0).flip(0))
    solution = solver(Dense(matrix), b, SHIFTS, max_iterations=steps, preconditioner=p)
    assert (solution.stopped, solution.iterations) == ("iterations", steps)
    weight = p.values.rsqrt()[:, None]
    for t, value, residual in zip(SHIFTS, solution.value, solution.residual, strict=True):
        remainder = weight * (b - matrix @ value - t * (p @ value))
        torch.testing.assert_close(residual, remainder.norm(dim=0) / (weight * b).norm(dim=0), rtol=1e-9, atol=0)


@every_solver
def test_weights_keep_the_sum_alone(solver: ShiftedSolver) -> None:
    matrix, b, weights = spd(20, 1e3), normal(20, 3), torch.tensor([1.0, -2.0, 0.5]).double()
    apart = solver(Dense(matrix), b, SHIFTS)
    together = solver(Dense(matrix), b, SHIFTS, weights=weights)
    torch.testing.assert_close(together.value, torch.einsum("q,qdk->dk", weights, apart.value))
    torch.testing.assert_close(together.residual, apart.residual)
    assert solver(Dense(matrix), b[:, 0], SHIFTS, weights=weights).value.shape == (20,)


@every_solver
def test_columns_that_are_done_leave_the_product(solver: ShiftedSolver) -> None:
    matrix, widths = spd(30, 100.0), list[int]()

    def product(block: torch.Tensor) -> torch.Tensor:
        widths.append(block.shape[1])
        return matrix @ block

    vectors = torch.linalg.eigh(matrix).eigenvectors
    b = torch.stack([vectors[:, 3], torch.zeros(30).double(), normal(30), vectors[:, :4].sum(1)], 1)
    operator = FunctionOperator(product, product, (30, 30), matrix)
    solution = solver(operator, b, SHIFTS, rtol=1e-8)
    assert widths[:5] == [3, 2, 2, 2, 1]
    assert solution.matvecs == sum(widths)
    assert solution.iterations == len(widths)
    assert (solution.value[:, :, 1] == 0).all()
    expected = torch.stack([torch.linalg.solve(matrix + t * eye(30), b) for t in SHIFTS])
    torch.testing.assert_close(solution.value, expected, rtol=1e-5, atol=1e-6)


@every_solver
def test_exhausted_spaces(solver: ShiftedSolver) -> None:
    b = torch.tensor([2.0, 0.0, 0.0]).double()
    solution = solver(Diagonal(torch.tensor([4.0, 5.0, 6.0]).double()), b, SHIFTS)
    assert (solution.stopped, solution.iterations) == ("converged", 1)
    torch.testing.assert_close(solution.value[:, 0], 2 / (4 + SHIFTS))
    singular = solver(Diagonal(torch.tensor([0.0, 1.0, 2.0]).double()), torch.ones(3).double(), SHIFTS)
    assert singular.stopped == "breakdown"
    assert singular.value.isfinite().all()
    assert singular.residual[1] > 0.1
    assert singular.residual[[0, 2]].max() < 1e-6


@every_solver
def test_the_length_of_b_does_not_matter(solver: ShiftedSolver) -> None:
    matrix, b = spd(20, 1e3), normal(20, 2)
    small, large = (solver(Dense(matrix), size * b, SHIFTS) for size in (2.0**-200, 2.0**200))
    torch.testing.assert_close(small.value * 2.0**400, large.value, rtol=1e-12, atol=0)


@every_solver
def test_float32_products_float64_recurrences(solver: ShiftedSolver) -> None:
    matrix, b = spd(30, 1e3), normal(30, 2)
    solution = solver(Dense(matrix.float()), b.float(), SHIFTS.float(), preconditioner=Diagonal(spectrum(30, 2.0)))
    assert solution.value.dtype == torch.float32
    assert solution.residual.dtype == torch.float64
    for t, value in zip(SHIFTS, solution.value.double(), strict=True):
        remainder = b - matrix @ value - t * spectrum(30, 2.0)[:, None] * value
        assert remainder.norm() < 1e-3 * b.norm()


@every_solver
def test_nothing_is_differentiated(solver: ShiftedSolver) -> None:
    operator = Diagonal(spectrum(6, 10.0).requires_grad_())
    assert not solver(operator, normal(6), SHIFTS.clone().requires_grad_(), preconditioner=operator).value.requires_grad


@every_solver
def test_on_any_device(solver: ShiftedSolver, device: torch.device) -> None:
    matrix, b = spd(20, 1e2), normal(20, 3)
    solution = solver(Dense(matrix.to(device)), b.to(device), SHIFTS, weights=SHIFTS)
    assert solution.value.device.type == device.type
    expected = sum(t * torch.linalg.solve(matrix + t * eye(20), b) for t in SHIFTS)
    torch.testing.assert_close(solution.value.cpu(), expected, rtol=1e-4, atol=1e-4)


@every_solver
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"b": torch.ones(4).double()}, ShapeError, r"a vector \[3\] or a block of columns \[3, k\]"),
        ({"b": torch.ones(3, 0).double()}, ShapeError, "at least one right-hand side"),
        ({"b": torch.ones(3)}, UnsupportedError, "dtype torch.float64"),
        ({"b": torch.full((3,), float("nan")).double()}, NumericalError, "3 of 3 entries NaN"),
        ({"operator": Diagonal(torch.full((3,), float("nan")).double())}, NumericalError, "1 of 1 entries NaN"),
        ({"shifts": torch.ones(0).double()}, ShapeError, r"shifts \[q\]. Got shape \[0\]"),
        ({"shifts": torch.full((2,), float("inf")).double()}, NumericalError, "2 of 2 entries NaN or infinite"),
        ({"weights": torch.ones(2).double()}, ShapeError, r"one weight a shift, \[3\]. Got \[2\]"),
        ({"rtol": -1.0}, ConfigError, "a tolerance rtol > 0"),
        ({"max_iterations": 0}, ConfigError, "max_iterations of at least 1"),
        ({"preconditioner": Diagonal(torch.ones(2))}, ShapeError, "a preconditioner like Diagonal.3 x 3"),
        ({"preconditioner": Dense(-torch.eye(3).double())}, NumericalError, "positive definite"),
    ],
)
def test_bad_input(solver: ShiftedSolver, change: dict[str, object], error: type[Exception], message: str) -> None:
    arguments = {"operator": Diagonal(torch.ones(3).double()), "b": torch.ones(3).double(), "shifts": SHIFTS}
    with pytest.raises(error, match=message):
        solver(**(arguments | change))
