"""Shifted systems: what holds for both methods, and what tells them apart."""

from __future__ import annotations

import pytest
import torch

from lapwing.ground.errors import ConfigError, NumericalError, ShapeError, UnsupportedError
from lapwing.linalg import Dense, Diagonal, FunctionOperator, LowRank
from lapwing.linalg.cg import conjugate_gradients
from lapwing.linalg.shifted import Method, shifted_solve
from tests.linalg.cases import eye, normal, spd, spectrum

SHIFTS = torch.tensor([0.5, 0.0, 3.0], dtype=torch.float64)
every_method = pytest.mark.parametrize("method", ["cg", "minres"])


@every_method
def test_every_shift_and_column(method: Method) -> None:
    matrix, b = spd(20, 100.0), normal(20, 4)
    solution = shifted_solve(Dense(matrix), b, SHIFTS, rtol=1e-10, method=method)
    expected = torch.stack([torch.linalg.solve(matrix + t * eye(20), b) for t in SHIFTS])
    torch.testing.assert_close(solution.value, expected, rtol=1e-7, atol=1e-7)
    assert solution.residual.shape == (3, 4)
    single = shifted_solve(Dense(matrix), b[:, 1], SHIFTS, rtol=1e-10, method=method)
    torch.testing.assert_close(single.value, expected[..., 1], rtol=1e-7, atol=1e-7)
    assert single.residual.shape == (3, 1)


@every_method
def test_the_shift_multiplies_the_preconditioner(method: Method) -> None:
    matrix, b = spd(20, 100.0), normal(20, 2)
    p = LowRank(normal(20, 3), Diagonal(spectrum(20, 10.0)))
    solution = shifted_solve(Dense(matrix), b, SHIFTS, rtol=1e-10, preconditioner=p, method=method)
    expected = torch.stack([torch.linalg.solve(matrix + t * p.dense(), b) for t in SHIFTS])
    torch.testing.assert_close(solution.value, expected, rtol=1e-7, atol=1e-7)


@every_method
@pytest.mark.parametrize("steps", [1, 4, 11])
def test_the_residual_is_known_before_convergence(method: Method, steps: int) -> None:
    matrix, b = spd(20, 1e3), normal(20, 2)
    p = Diagonal(spectrum(20, 10.0).flip(0))
    solution = shifted_solve(Dense(matrix), b, SHIFTS, max_iterations=steps, preconditioner=p, method=method)
    assert (solution.stopped, solution.iterations) == ("iterations", steps)
    weight = p.values.rsqrt()[:, None]
    for t, value, residual in zip(SHIFTS, solution.value, solution.residual, strict=True):
        remainder = weight * (b - matrix @ value - t * (p @ value))
        torch.testing.assert_close(residual, remainder.norm(dim=0) / (weight * b).norm(dim=0), rtol=1e-9, atol=0)


@every_method
def test_weights_keep_the_sum_alone(method: Method) -> None:
    matrix, b, weights = spd(20, 1e3), normal(20, 3), torch.tensor([1.0, -2.0, 0.5]).double()
    apart = shifted_solve(Dense(matrix), b, SHIFTS, method=method)
    together = shifted_solve(Dense(matrix), b, SHIFTS, weights=weights, method=method)
    torch.testing.assert_close(together.value, torch.einsum("q,qdk->dk", weights, apart.value))
    torch.testing.assert_close(together.residual, apart.residual)
    assert shifted_solve(Dense(matrix), b[:, 0], SHIFTS, weights=weights, method=method).value.shape == (20,)


@every_method
def test_columns_that_are_done_leave_the_product(method: Method) -> None:
    matrix, widths = spd(30, 100.0), list[int]()

    def product(block: torch.Tensor) -> torch.Tensor:
        widths.append(block.shape[1])
        return matrix @ block

    vectors = torch.linalg.eigh(matrix).eigenvectors
    b = torch.stack([vectors[:, 3], torch.zeros(30).double(), normal(30), vectors[:, :4].sum(1)], 1)
    operator = FunctionOperator(product, product, (30, 30), matrix)
    solution = shifted_solve(operator, b, SHIFTS, rtol=1e-8, method=method)
    assert widths[:5] == [3, 2, 2, 2, 1]
    assert solution.matvecs == sum(widths)
    assert solution.iterations == len(widths)
    assert (solution.value[:, :, 1] == 0).all()
    expected = torch.stack([torch.linalg.solve(matrix + t * eye(30), b) for t in SHIFTS])
    torch.testing.assert_close(solution.value, expected, rtol=1e-5, atol=1e-6)


@every_method
def test_exhausted_spaces(method: Method) -> None:
    b = torch.tensor([2.0, 0.0, 0.0]).double()
    solution = shifted_solve(Diagonal(torch.tensor([4.0, 5.0, 6.0]).double()), b, SHIFTS, method=method)
    assert (solution.stopped, solution.iterations) == ("converged", 1)
    torch.testing.assert_close(solution.value[:, 0], 2 / (4 + SHIFTS))
    singular = shifted_solve(
        Diagonal(torch.tensor([0.0, 1.0, 2.0]).double()), torch.ones(3).double(), SHIFTS, method=method
    )
    assert singular.stopped == "breakdown"
    assert singular.value.isfinite().all()
    assert singular.residual[1] > 0.1
    assert singular.residual[[0, 2]].max() < 1e-6


@every_method
def test_the_length_of_b_does_not_matter(method: Method) -> None:
    matrix, b = spd(20, 1e3), normal(20, 2)
    small, large = (shifted_solve(Dense(matrix), size * b, SHIFTS, method=method) for size in (2.0**-200, 2.0**200))
    torch.testing.assert_close(small.value * 2.0**400, large.value, rtol=1e-12, atol=0)


@every_method
def test_float32_products_float64_recurrences(method: Method) -> None:
    matrix, b = spd(30, 1e3), normal(30, 2)
    solution = shifted_solve(
        Dense(matrix.float()), b.float(), SHIFTS.float(), preconditioner=Diagonal(spectrum(30, 2.0)), method=method
    )
    assert solution.value.dtype == torch.float32
    assert solution.residual.dtype == torch.float64
    for t, value in zip(SHIFTS, solution.value.double(), strict=True):
        remainder = b - matrix @ value - t * spectrum(30, 2.0)[:, None] * value
        assert remainder.norm() < 1e-3 * b.norm()


@every_method
def test_nothing_is_differentiated(method: Method) -> None:
    operator = Diagonal(spectrum(6, 10.0).requires_grad_())
    assert not shifted_solve(
        operator, normal(6), SHIFTS.clone().requires_grad_(), preconditioner=operator, method=method
    ).value.requires_grad


@every_method
def test_on_any_device(method: Method, device: torch.device) -> None:
    matrix, b = spd(20, 1e2), normal(20, 3)
    solution = shifted_solve(Dense(matrix.to(device)), b.to(device), SHIFTS, weights=SHIFTS, method=method)
    assert solution.value.device.type == device.type
    expected = sum(t * torch.linalg.solve(matrix + t * eye(20), b) for t in SHIFTS)
    torch.testing.assert_close(solution.value.cpu(), expected, rtol=1e-4, atol=1e-4)


@every_method
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
def test_bad_input(method: Method, change: dict[str, object], error: type[Exception], message: str) -> None:
    arguments = {"operator": Diagonal(torch.ones(3).double()), "b": torch.ones(3).double(), "shifts": SHIFTS}
    with pytest.raises(error, match=message):
        shifted_solve(**(arguments | change), method=method)


@pytest.mark.parametrize("steps", [1, 3, 10])
def test_each_shift_makes_the_steps_of_conjugate_gradients(steps: int) -> None:
    """Where residuals fall at every step, so that the last iterate is the best, which conjugate gradients return."""
    matrix, b, shifts = spd(30, 10.0), normal(30), torch.tensor([0.0, 0.1]).double()
    p = Diagonal(matrix.diagonal().clone())
    solution = shifted_solve(Dense(matrix), b, shifts, max_iterations=steps, preconditioner=p)
    for t, value in zip(shifts, solution.value, strict=True):
        shifted = Dense(matrix + t * p.dense())
        plain = conjugate_gradients(shifted, b, max_iterations=steps, preconditioner=p)
        torch.testing.assert_close(value, plain.value, rtol=1e-8, atol=1e-8)


def test_an_indefinite_system() -> None:
    operator, b = Dense(spd(20, 100.0) - eye(20)), normal(20)
    with pytest.raises(NumericalError, match=r"Got a pivot of -.* or method='minres'"):
        shifted_solve(operator, b, torch.tensor([2.0, 0.0]).double())
    assert shifted_solve(operator, b, torch.tensor([2.0, 1.0]).double()).converged


def test_it_converges_where_rounding_stops_minimal_residuals() -> None:
    matrix, b, shifts = spd(30, 1e8), normal(30), torch.tensor([0.0]).double()
    mine, other = (
        shifted_solve(Dense(matrix), b, shifts, method=method, max_iterations=4000).value[0]
        for method in ("cg", "minres")
    )
    assert (b - matrix @ mine).norm() < 1.1e-6 * b.norm() < (b - matrix @ other).norm()


def test_a_pivot_that_is_rounding() -> None:
    exchange = Dense(torch.tensor([[0.0, 1.0], [1.0, 0.0]]).double())
    solution = shifted_solve(exchange, torch.tensor([1.0, 0.0]).double(), torch.zeros(1).double())
    assert (solution.stopped, solution.iterations) == ("breakdown", 1)
    assert (solution.value == 0).all()
    assert solution.residual.item() == 1.0


def test_indefinite_systems() -> None:
    matrix, b = spd(20, 100.0) - eye(20), normal(20, 2)
    shifts = torch.tensor([-0.5, 0.0, 0.3]).double()
    solution = shifted_solve(Dense(matrix), b, shifts, rtol=1e-9, method="minres")
    assert solution.converged
    expected = torch.stack([torch.linalg.solve(matrix + t * eye(20), b) for t in shifts])
    torch.testing.assert_close(solution.value, expected, rtol=1e-6, atol=1e-6)


def test_the_residual_is_the_least_in_the_space() -> None:
    matrix, b, shift = spd(20, 1e3), normal(20), 0.1
    p = Diagonal(spectrum(20, 10.0).flip(0))
    powers = [p.solve(b)]
    for _ in range(5):
        powers.append(p.solve(matrix @ powers[-1]))
        powers[-1] /= powers[-1].norm()
    weight = p.values.rsqrt()[:, None]
    space = weight * ((matrix + shift * p.dense()) @ torch.stack(powers, 1))
    least = torch.linalg.lstsq(space, weight * b[:, None]).solution
    expected = (space @ least - weight * b[:, None]).norm() / (weight * b[:, None]).norm()
    solution = shifted_solve(
        Dense(matrix), b, torch.tensor([shift]).double(), max_iterations=6, preconditioner=p, method="minres"
    )
    torch.testing.assert_close(solution.residual[0, 0], expected, rtol=1e-7, atol=0)


def test_it_falls_at_every_step_and_never_behind_conjugate_gradients() -> None:
    operator, b, shift = Dense(spd(30, 1e4)), normal(30), torch.tensor([1e-3]).double()
    falling = [
        shifted_solve(operator, b, shift, max_iterations=j, method="minres").residual.item() for j in range(1, 25)
    ]
    other = [shifted_solve(operator, b, shift, max_iterations=j).residual.item() for j in range(1, 25)]
    assert falling == sorted(falling, reverse=True)
    assert all(mine <= theirs * (1 + 1e-9) for mine, theirs in zip(falling, other, strict=True))
