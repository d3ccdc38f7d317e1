"""Block conjugate gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lapwing.ground.errors import ConfigError, NumericalError, ShapeError, UnsupportedError
from lapwing.linalg import Dense, Diagonal, FunctionOperator, LowRank
from lapwing.linalg.cg import conjugate_gradients
from tests.linalg.cases import eye, normal, spd, spectrum


class Counted:
    """An operator that counts the columns it multiplies."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix, self.widths = matrix, list[int]()
        self.operator = FunctionOperator(self.product, self.product, (len(matrix), len(matrix)), matrix)

    def product(self, block: Tensor) -> Tensor:
        self.widths.append(block.shape[1])
        return self.matrix @ block


def test_products_are_counted_and_the_limit_is_kept() -> None:
    counted = Counted(spd(30, 1e4))
    solution = conjugate_gradients(counted.operator, normal(30, 2), max_iterations=5)
    assert (solution.stopped, solution.iterations) == ("iterations", 5)
    assert counted.widths == [2] * 6  # five steps and the true residual
    assert solution.matvecs == 12


def test_columns_share_one_space() -> None:
    matrix, b = spd(40, 1e4), normal(40, 8)
    together = conjugate_gradients(Dense(matrix), b)
    apart = [conjugate_gradients(Dense(matrix), b[:, j]) for j in range(8)]
    assert together.converged
    assert together.iterations <= 6  # 40 / 8 in exact arithmetic
    assert together.matvecs < sum(one.matvecs for one in apart) / 10


def test_weak_directions_and_converged_columns_go_on_steering() -> None:
    matrix, b = spd(200, 1e6), normal(200, 20)
    b[:, 0] = matrix @ b[:, 0]  # easier than the others
    solution = conjugate_gradients(Dense(matrix), b, rtol=1e-8)
    assert solution.converged
    assert solution.iterations <= 40  # more than a thousand without either


def test_one_column_takes_one_step_for_each_eigenvalue() -> None:
    values = torch.tensor([1.0, 10.0, 100.0]).double().repeat(5)
    solution = conjugate_gradients(Diagonal(values), normal(15), rtol=1e-10)
    assert (solution.stopped, solution.iterations, solution.matvecs) == ("converged", 3, 4)
    assert solution.value.shape == (15,)
    assert solution.residual.shape == (1,)


def test_dependent_columns_cost_nothing() -> None:
    counted, b = Counted(spd(30, 10.0)), normal(30, 2)
    block = torch.stack([b[:, 0], 0 * b[:, 0], b[:, 1], b[:, 0], b[:, 0] - 3 * b[:, 1], -b[:, 1]], 1)
    solution = conjugate_gradients(counted.operator, block, rtol=1e-4)
    assert solution.converged
    assert max(counted.widths[:3]) == 2
    assert (solution.value[:, 1] == 0).all()
    assert solution.residual[1] == 0
    expected = torch.linalg.solve(counted.matrix, block)
    assert (solution.value - expected).norm() < 1e-3 * expected.norm()


def test_more_columns_than_rows() -> None:
    matrix, b = spd(7, 1e3), normal(7, 12)
    solution = conjugate_gradients(Dense(matrix), b)
    torch.testing.assert_close(solution.value, torch.linalg.solve(matrix, b))
    assert (solution.iterations, solution.matvecs) == (1, 7 + 12)


def test_columns_of_any_size() -> None:
    matrix, sizes = spd(30, 100.0), torch.tensor([1e-150, 1e-9, 1.0, 1e12], dtype=torch.float64)
    b = normal(30, 4)
    solution = conjugate_gradients(Dense(matrix), b * sizes, rtol=1e-9)
    assert solution.converged
    assert solution.iterations == conjugate_gradients(Dense(matrix), b, rtol=1e-9).iterations
    torch.testing.assert_close(solution.value / sizes, torch.linalg.solve(matrix, b), rtol=1e-6, atol=1e-6)


def test_warm_start() -> None:
    counted, b = Counted(spd(30, 1e3)), normal(30, 3)
    exact = torch.linalg.solve(counted.matrix, b)
    started = exact.clone()
    at_the_goal = conjugate_gradients(counted.operator, b, initial=started)
    assert (at_the_goal.stopped, at_the_goal.iterations, at_the_goal.matvecs) == ("converged", 0, 6)
    started[:, 1] += normal(30)
    one_missing = conjugate_gradients(counted.operator, b, initial=started)
    assert counted.widths[3] == 1  # the others are there already
    assert one_missing.converged
    torch.testing.assert_close(one_missing.value, exact, rtol=1e-4, atol=1e-4)
    assert not torch.equal(started, one_missing.value)  # and is not written to


def test_what_rounding_took_from_the_recurrence_comes_back() -> None:
    matrix, b = spd(30, 100.0), normal(30, 2)
    solution = conjugate_gradients(Dense(matrix), b, rtol=1e-9, initial=1e9 * normal(30, 2, seed=1))
    assert solution.converged
    assert ((b - matrix @ solution.value).norm(dim=0) <= 1.01e-9 * b.norm(dim=0)).all()


def test_float32_stops_where_rounding_does() -> None:
    matrix, b = spd(40, 1e5).float(), normal(40, 2).float()
    solution = conjugate_gradients(Dense(matrix), b, rtol=1e-9, max_iterations=10_000)
    assert solution.stopped == "stagnated"
    assert solution.iterations < 1000
    assert solution.value.dtype == torch.float32
    assert solution.residual.dtype == torch.float64
    value, length = solution.value.double(), b.double().norm(dim=0)
    remainder = (b.double() - matrix.double() @ value).norm(dim=0) / length
    rounding = torch.finfo(torch.float32).eps * (matrix.double().abs() @ value.abs()).norm(dim=0) / length
    assert ((solution.residual - remainder).abs() < rounding).all()  # measured by products in float32 itself
    assert remainder.max() < 1e-7 * 1e5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_column_ends_worse_than_it_was(dtype: torch.dtype) -> None:
    matrix, b = Dense(spd(60, 1e8).to(dtype)), normal(60, 2).to(dtype)
    found = [conjugate_gradients(matrix, b, max_iterations=k).residual for k in range(1, 20)]
    assert bool((torch.stack([torch.ones(2).double(), *found]).diff(dim=0) <= 0).all())


def test_no_smaller_residual_for_a_quarter_of_the_steps() -> None:
    rotation = eye(2) + torch.tensor([[0.0, -10.0], [10.0, 0.0]]).double()  # not symmetric: every step overshoots
    operator = FunctionOperator(rotation.__matmul__, rotation.mT.__matmul__, (2, 2), rotation)
    for allowed, taken in ((400, 100 + 1), (100, 50 + 1), (20, 20)):
        solution = conjugate_gradients(operator, torch.ones(2).double(), max_iterations=allowed)
        assert solution.iterations == taken
        assert solution.stopped == ("stagnated" if taken < allowed else "iterations")


def test_a_column_is_frozen_where_it_converged() -> None:
    operator, b = Dense(spd(60, 1e5)), normal(60, 6)
    b[:, 0] = operator @ b[:, 0]
    values = [conjugate_gradients(operator, b, rtol=0.3, max_iterations=j) for j in range(1, 40)]
    first = next(j for j, solution in enumerate(values) if solution.residual[0] <= 0.3)
    assert not values[first].converged
    assert values[-1].converged
    assert values[-1].matvecs == 6 * (values[-1].iterations + 1)  # nothing had to be mended
    assert torch.equal(values[first].value[:, 0], values[-1].value[:, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_exact_preconditioner_takes_one_step(dtype: torch.dtype) -> None:
    matrix, b = spd(20, 1e3), normal(20, 3)
    solution = conjugate_gradients(Dense(matrix), b, rtol=1e-3, preconditioner=Dense(matrix.to(dtype)))
    assert (solution.stopped, solution.iterations) == ("converged", 1)


def test_a_preconditioner_in_half_precision_solves_with_small_residuals_too() -> None:
    """Where a residual of 1e-4 over 9000 is zero."""
    values = torch.tensor([3000.0, 6000.0, 9000.0])
    b = torch.tensor([1e-4, 2e-4, 1e-4])
    solution = conjugate_gradients(Diagonal(values), b, rtol=1e-6, preconditioner=Diagonal(values.half()))
    assert solution.converged
    torch.testing.assert_close(solution.value, b / values, rtol=1e-5, atol=0.0)


def test_ends_where_no_direction_is_left() -> None:
    """Below rounding, along the one axis there is."""
    solution = conjugate_gradients(Diagonal(torch.tensor([1.3])), torch.tensor([0.7]), rtol=1e-17)
    assert solution.value.item() == pytest.approx(0.7 / 1.3) and solution.matvecs < 10


def test_a_preconditioner_pays() -> None:
    root, base = 100 * normal(60, 5), spectrum(60, 1e4)
    operator = LowRank(root, Diagonal(base))
    b = normal(60)
    plain = conjugate_gradients(operator, b)
    better = conjugate_gradients(operator, b, preconditioner=Diagonal(base))
    assert better.iterations <= 8 < plain.iterations


def test_indefinite_operators() -> None:
    with pytest.raises(NumericalError, match=r"Got curvature vᵀAv = -0.333.* larger prior"):
        conjugate_gradients(Diagonal(torch.tensor([1.0, -2.0, 0.0])), torch.ones(3))
    with pytest.raises(NumericalError, match="curvature vᵀAv = -2 along"):
        conjugate_gradients(Diagonal(torch.tensor([1.0, -2.0, 3.0])), torch.eye(3))
    with pytest.raises(NumericalError, match="curvature vᵀAv = 0 along"):
        conjugate_gradients(Diagonal(torch.zeros(3)), torch.ones(3))


def test_singular_operators() -> None:
    at_once = conjugate_gradients(Diagonal(torch.tensor([1.0, 0.0, 2.0])), torch.eye(3)[:, :2])
    assert (at_once.stopped, at_once.iterations) == ("breakdown", 0)
    assert (at_once.value == 0).all()
    root = normal(20, 4)
    operator = LowRank(root)
    inside = conjugate_gradients(operator, root @ normal(4, 2))
    assert inside.converged
    outside = conjugate_gradients(operator, normal(20, 5))
    assert outside.stopped == "breakdown"
    assert outside.value.isfinite().all()
    assert (outside.residual > 0.5).any()


def test_nothing_is_differentiated() -> None:
    values = spectrum(6, 10.0).requires_grad_()
    solution = conjugate_gradients(Diagonal(values), normal(6).requires_grad_(), preconditioner=Diagonal(values))
    assert not solution.value.requires_grad


def test_many_unknowns() -> None:
    values = spectrum(300_000, 100.0).float()
    solution = conjugate_gradients(Diagonal(values), torch.ones(300_000), rtol=1e-4)
    assert solution.converged
    assert (solution.value * values - 1).norm() < 2e-4 * 300_000**0.5


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"b": torch.ones(4).double()}, ShapeError, r"a vector \[3\] or a block of columns \[3, k\]"),
        ({"b": torch.ones(3, 0).double()}, ShapeError, "at least one right-hand side"),
        ({"b": torch.ones(3)}, UnsupportedError, r"dtype torch.float64"),
        ({"b": torch.tensor([1.0, float("nan"), 0.0]).double()}, NumericalError, "1 of 3 entries NaN"),
        ({"operator": Diagonal(torch.full((3,), float("nan")).double())}, NumericalError, "1 of 1 entries NaN"),
        ({"operator": LowRank(normal(3, 2)).root()}, ShapeError, r"a symmetric operator \[d, d\]"),
        ({"rtol": 0.0}, ConfigError, "a tolerance rtol > 0. Got 0.0"),
        ({"rtol": float("nan")}, ConfigError, "a tolerance rtol > 0. Got nan"),
        ({"max_iterations": 0}, ConfigError, "max_iterations of at least 1"),
        ({"preconditioner": Diagonal(torch.ones(4))}, ShapeError, "a preconditioner like Diagonal.3 x 3"),
        ({"initial": torch.ones(3, 1).double()}, ShapeError, r"initial shaped as b, \[3\]. Got \[3, 1\]"),
        ({"initial": torch.full((3,), float("inf")).double()}, NumericalError, "3 of 3 entries NaN or infinite"),
    ],
)
def test_bad_input(change: dict[str, object], error: type[Exception], message: str) -> None:
    arguments: dict[str, object] = {"operator": Diagonal(torch.ones(3).double()), "b": torch.ones(3).double()}
    with pytest.raises(error, match=message):
        conjugate_gradients(**(arguments | change))  # pyright: ignore[reportArgumentType]


def test_on_any_device(device: torch.device) -> None:
    matrix, b = spd(20, 1e3), normal(20, 3)
    solution = conjugate_gradients(
        Dense(matrix.to(device)), b.to(device), preconditioner=Diagonal(matrix.diagonal().to(device))
    )
    assert solution.value.device.type == device.type
    torch.testing.assert_close(matrix @ solution.value.cpu(), b, rtol=1e-4, atol=1e-4)


def test_the_identity_is_solved_at_once() -> None:
    solution = conjugate_gradients(Dense(eye(5)), 3 * normal(5, 2))
    assert solution.iterations == 1
    torch.testing.assert_close(solution.value, 3 * normal(5, 2))


def test_residuals_are_measured_in_the_units_asked_for() -> None:
    matrix, b, unit = spd(30, 1e3), normal(30, 2), torch.logspace(-3, 3, 30, dtype=torch.float64)
    solution = conjugate_gradients(Dense(matrix), b, rtol=1e-3, unit=unit)
    left, whole = unit[:, None] * (b - matrix @ solution.value), unit[:, None] * b
    torch.testing.assert_close(solution.residual, left.norm(dim=0) / whole.norm(dim=0))
    assert solution.converged and (solution.residual <= 1e-3).all()
    plain = conjugate_gradients(Dense(matrix), b, rtol=1e-3)
    assert not torch.equal(plain.value, solution.value)
