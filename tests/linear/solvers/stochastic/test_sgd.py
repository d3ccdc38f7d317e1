"""Mini-batch descent for a problem: the same solutions as dense algebra, as far as it says it got."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from lapwing.ground.errors import ConfigError, NumericalError, ShapeError, UnsupportedError
from lapwing.jacobian.products.linearisation import Linearisation
from lapwing.linalg import Dense, Diagonal, Operator
from lapwing.linear.gauss_newton import GGNProduct
from lapwing.linear.mode.newton import newton
from lapwing.linear.model import Matrix, batches
from lapwing.linear.perturbation import Perturbation
from lapwing.linear.problem import Problem
from lapwing.linear.solvers import CG, SGD
from tests.checker import unchecked
from tests.curvature import naive
from tests.curvature.naive import known
from tests.linear.mode.test_newton import margins
from tests.operators import GramMatrix
from tests.posterior_cases import normal, refused

N, D, C = 60, 12, 2


def linear_model(examples: int = 10, prior: Tensor | None = None) -> Problem:
    """A Gaussian linear model of two outputs with its rows in blocks."""
    prior = torch.linspace(20.0, 40.0, D, dtype=torch.float64) if prior is None else prior
    return Problem.of(Matrix(normal(N * C, D).unflatten(0, (N, C)), examples=examples), Diagonal(prior), 1.7)


def flat(batches: Iterator[Iterator[Operator]]) -> list[Operator]:
    return [part for batch in batches for part in batch]


def exact(problem: Problem, b: Tensor) -> Tensor:
    return torch.linalg.solve(problem.precision.dense(), b)


def test_rows_add_up_to_the_curvature() -> None:
    problem = linear_model(examples=25)
    parts = flat(problem.curvature.parts(3, generator=torch.Generator().manual_seed(0)))
    assert len(parts) == 3
    rows = normal(N * C, D)
    torch.testing.assert_close(sum(part.dense() for part in parts), rows.mT @ rows)
    torch.testing.assert_close(problem.curvature.dense(), rows.mT @ rows)


def test_mini_batches_are_the_same_ones_in_every_pass() -> None:
    """In any order: else one that holds a short last piece stands for as many examples as one that does not."""
    model = linear_model(examples=25).model
    assert model is not None
    orders = set[tuple[int, ...]]()
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        passed = [tuple(chunk.examples for chunk in batch) for batch in batches(model, batch=30, generator=generator)]
        assert sorted(passed) == [(10,), (25, 25)]
        orders.add(tuple(map(len, passed)))
    assert len(orders) == 2


def test_a_short_last_batch_draws_the_solution_nowhere() -> None:
    """The gradients of mini-batches average to the whole one, whatever their sizes."""
    problem, b = linear_model(examples=25), normal(D, 2, seed=3)
    solution = SGD(batch=30, epochs=150, rtol=5e-3).solve(problem, b)
    assert solution.residual.max() < 0.02
    torch.testing.assert_close(solution.value, exact(problem, b), rtol=0.03, atol=3e-4)


@pytest.mark.parametrize("columns", [(), (1,), (7,)])
def test_solves_in_one_batch(columns: tuple[int, ...]) -> None:
    problem, b = linear_model(), normal(D, *columns, seed=3)
    solution = SGD(batch=N, epochs=1000, rtol=1e-9).solve(problem, b)
    assert solution.converged and solution.residual.shape == (columns or (1,))
    assert solution.value.shape == b.shape
    torch.testing.assert_close(solution.value, exact(problem, b), rtol=1e-7, atol=1e-9)


def test_solves_where_only_the_sum_is_known() -> None:
    problem, b = linear_model(), normal(D, 2, seed=3)
    whole = Problem(GramMatrix(Dense(problem.curvature.dense())), problem.prior, problem.scale)
    solution = SGD(epochs=1000, rtol=1e-9).solve(whole, b)
    torch.testing.assert_close(solution.value, exact(problem, b), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(("examples", "batch"), [(10, 10), (10, 20), (7, 20)])
def test_mini_batches_come_close_and_say_how_close(examples: int, batch: int) -> None:
    problem, b = linear_model(examples), normal(D, 3, seed=3)
    solution = SGD(batch=batch, epochs=400, rtol=0.02).solve(problem, b)
    assert solution.converged
    rest = b - problem.precision.dense() @ solution.value
    torch.testing.assert_close(solution.residual, rest.norm(dim=0) / b.norm(dim=0), rtol=1e-6, atol=1e-12)
    truth = exact(problem, b)
    assert (solution.value - truth).norm() < 0.03 * truth.norm()


def test_a_small_residual_is_no_solution_while_predictions_are_off() -> None:
    """Where the data say much in one direction its share of the right-hand side hides all others."""
    rows = normal(N * C, D)
    rows[:, 0] *= 100.0
    model = Matrix(rows.unflatten(0, (N, C)), examples=10)
    problem = Problem.of(model, Diagonal(torch.full((D,), 30.0, dtype=torch.float64)))
    dense = problem.precision.dense()
    b = dense.diagonal().sqrt()[:, None] * normal(D, 2, seed=3)
    b[0] *= 10.0
    solution = SGD(batch=N, epochs=100, rtol=0.02).solve(problem, b)
    truth = exact(problem, b)

    def length(x: Tensor) -> Tensor:
        return (x * (dense @ x)).sum(0).sqrt()

    true = length(solution.value - truth) / length(truth)
    assert float(solution.residual.max()) < 0.02 and float(true.min()) > 0.5
    assert solution.stopped == "iterations" and solution.error is not None
    torch.testing.assert_close(solution.error, true, rtol=0.2, atol=0.0)


def test_draws_have_the_inverse_precision_as_their_covariance(generator: torch.Generator) -> None:
    problem = linear_model()
    b = Perturbation.drawn(problem, 4000, generator=generator).right_hand_side(problem)
    solution = SGD(batch=20, epochs=100, rtol=0.03).solve(problem, b)
    found = solution.value @ solution.value.mT / 4000
    truth = torch.linalg.inv(problem.precision.dense())
    error = ((truth.diagonal()[:, None] * truth.diagonal() + truth.square()) / 4000).sqrt()
    assert ((found - truth).abs() <= 5 * error + 0.05 * truth.diagonal().max()).all()


def test_the_step_bounds_every_mini_batch() -> None:
    problem, prior = linear_model(examples=5), torch.linspace(20.0, 40.0, D, dtype=torch.float64)
    steps, step = SGD(batch=10).choose_step(problem, 1, torch.Generator().manual_seed(0))
    assert steps == 6
    unit = prior.rsqrt()
    batches = [
        list(batch) for batch in problem.curvature.parts(1, batch=10, generator=torch.Generator().manual_seed(0))
    ]
    assert [len(batch) for batch in batches] == 6 * [2]
    whitened = [unit[:, None] * (a.dense() + b.dense()) * unit for a, b in batches]
    largest = max(float(torch.linalg.eigvalsh(6 * 1.7 * matrix)[-1]) + 1 for matrix in whitened)
    assert largest <= 1 / step <= 2 * largest


def test_the_prior_is_a_preconditioner() -> None:
    """Columns of very different size, and a prior in proportion: as easy as columns of one size."""
    size = torch.logspace(-3, 3, D, dtype=torch.float64)
    rows, b = normal(N, D), normal(D, seed=3)
    plain = Problem.of(Matrix(rows), Diagonal(torch.full((D,), 9.0, dtype=torch.float64)))
    stretched = Problem.of(Matrix(rows * size), Diagonal(9.0 * size.square()))
    one, other = (
        SGD(batch=N, epochs=500, rtol=1e-8).solve(problem, right)
        for problem, right in ((plain, b), (stretched, b * size))
    )
    assert one.converged and other.converged and abs(other.iterations - one.iterations) <= 0.2 * one.iterations + 5
    torch.testing.assert_close(other.value * size, one.value, rtol=1e-5, atol=1e-7)


def test_a_warm_start_is_used() -> None:
    problem, b = linear_model(), normal(D, 3, seed=3)
    solver = SGD(batch=N, epochs=1000, rtol=1e-6)
    cold, warm = solver.solve(problem, b), solver.solve(problem, b, initial=exact(problem, b))
    assert warm.iterations < cold.iterations / 3


def test_a_start_within_the_tolerance_is_gone_on_from_all_the_same() -> None:
    problem, b = linear_model(), normal(D, 3, seed=3)
    truth = exact(problem, b)
    start, solver = 1.005 * truth, SGD(batch=N, epochs=300, rtol=0.02)
    kept, resumed = solver.solve(problem, b, initial=start), solver.resumed(problem, b, start)
    assert kept.converged and (kept.value - truth).norm() > 0.002 * truth.norm()
    assert resumed.converged and (resumed.value - truth).norm() < 0.0003 * truth.norm()
    rest = b - problem.precision.dense() @ resumed.value
    torch.testing.assert_close(resumed.residual, rest.norm(dim=0) / b.norm(dim=0), rtol=1e-6, atol=1e-12)


def test_columns_that_do_not_fit_are_solved_in_turn() -> None:
    problem, b = linear_model(), normal(D, 5, seed=3)
    narrow = SGD(batch=N, epochs=1000, rtol=1e-8, max_bytes=2 * 8 * 8 * D).solve(problem, b)
    assert narrow.converged and narrow.residual.shape == (5,)
    torch.testing.assert_close(narrow.value, exact(problem, b), rtol=1e-6, atol=1e-8)


def test_a_step_that_diverges_is_shortened() -> None:
    problem, b = linear_model(), normal(D, 3, seed=3)
    _, step = SGD(batch=N).choose_step(problem, 3, torch.Generator().manual_seed(0))
    solution = SGD(batch=N, epochs=1000, rtol=1e-6, step=40 * step, clip=1e6).solve(problem, b)
    assert solution.converged
    torch.testing.assert_close(solution.value, exact(problem, b), rtol=1e-4, atol=1e-6)
    with refused(NumericalError, "does not diverge"):
        SGD(batch=N, epochs=4, step=1e9 * step, clip=1e12).solve(problem, b)


def test_stopping_short_shows() -> None:
    problem, b = linear_model(), normal(D, 3, seed=3)
    short = SGD(batch=N, epochs=2, rtol=1e-9).solve(problem, b)
    assert short.stopped == "iterations" and short.iterations == 2 and short.residual.min() > 1e-3
    assert short.matvecs == 3 * (2 + 6) + 5
    noisy = SGD(batch=5, epochs=60, rtol=1e-9).solve(linear_model(examples=5), b)
    assert noisy.stopped in ("stagnated", "iterations") and noisy.residual.max() > 1e-9


def test_a_right_hand_side_of_zero_has_the_solution_zero() -> None:
    solution = SGD(epochs=3).solve(linear_model(), torch.zeros(D, 2, dtype=torch.float64))
    assert solution.converged and not solution.value.any() and not solution.residual.any()


def test_mini_batches_of_a_loss_count_by_their_examples() -> None:
    loss = margins(3.0 * normal(50, 3), examples=20)
    exact = newton(loss, loss.at_weights(normal(3)), CG().newton_step, rtol=1e-10, steps=50).weights
    found = SGD(epochs=150, batch=20).minimise(loss, loss.at_weights(normal(3)), rtol=1e-4, steps=50)
    assert found.iterations <= 3 * 150
    torch.testing.assert_close(found.weights, exact, rtol=0, atol=0.02)


def test_single_precision_and_repeatable() -> None:
    rows = normal(N, D).float()
    problem, b = Problem.of(Matrix(rows, examples=10), Diagonal(torch.full((D,), 30.0))), normal(D, 2, seed=3).float()
    solver = SGD(batch=20, epochs=100, rtol=0.03)
    first, second = solver.solve(problem, b), solver.solve(problem, b)
    assert first.value.dtype == torch.float32 and first.converged
    torch.testing.assert_close(first.value, second.value, rtol=0, atol=0)


@pytest.mark.parametrize(("memory", "shuffled"), [(2**31, True), (400, False)])
def test_a_network_in_mini_batches(memory: int, shuffled: bool) -> None:
    case = known("lenet")
    product = GGNProduct(Linearisation(case.model, memory))
    pieces = flat(product.parts(2))
    block = normal(case.network.size, 2)
    torch.testing.assert_close(sum(p @ block for p in pieces), naive.ggn(case) @ block, rtol=1e-9, atol=1e-10)
    assert bool(product.model.cache.chunks) == shuffled
    again = flat(product.parts(2, generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(sum(p @ block for p in again), naive.ggn(case) @ block, rtol=1e-9, atol=1e-10)


def test_agrees_with_conjugate_gradients_on_a_network() -> None:
    case = known("mlp")
    problem = Problem.of(Linearisation(case.model), Diagonal(torch.ones(case.network.size, dtype=torch.float64)))
    b = Perturbation.drawn(problem, 4, generator=torch.Generator().manual_seed(0)).right_hand_side(problem)
    solution = SGD(epochs=3000, rtol=1e-6).solve(problem, b)
    assert solution.converged
    torch.testing.assert_close(solution.value, CG(rtol=1e-10).solve(problem, b).value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "bad", "expected"),
    [
        ("rtol", 0.0, "rtol between 0 and 1"),
        ("momentum", 1.0, "momentum from 0 and below 1"),
        ("momentum", "x", "momentum from 0 and below 1"),
        ("clip", 0.0, "a positive clip"),
        ("step", -1.0, "a positive step"),
        ("step", "a", "a positive step"),
    ],
)
def test_the_option_that_is_wrong_is_named(name: str, bad: Any, expected: str) -> None:
    with unchecked(), refused(ConfigError, expected):
        SGD(**{name: bad})


@pytest.mark.parametrize("name", ["epochs", "batch", "max_bytes"])
def test_bad_counts(name: str) -> None:
    with refused(ConfigError, f"{name} of at least 1"):
        SGD(**{name: 0})


def test_bad_right_hand_sides() -> None:
    problem, b = linear_model(), normal(D, 2, seed=3)
    with refused(ShapeError, "at least one"):
        SGD().solve(problem, b[:, :0])
    with refused(UnsupportedError, "to(operator.dtype)"):
        SGD().solve(problem, b.float())
    with refused(NumericalError, "checking"):
        SGD().solve(problem, b * float("nan"))


def test_a_step_thousands_of_times_too_long_begins_again_where_it_began() -> None:
    problem, b = linear_model(), normal(D, 2, seed=1)
    solution = SGD(step=1e6, rtol=1e-3, batch=N).solve(problem, b)
    assert solution.converged
    torch.testing.assert_close(solution.value, exact(problem, b), rtol=1e-2, atol=1e-4)


def test_the_step_is_short_enough_for_every_mini_batch() -> None:
    rows = normal(N, D)
    rows[: N // 2] *= 10.0
    problem = Problem.of(Matrix(rows, examples=N // 2), Diagonal(torch.ones(D, dtype=torch.float64)))
    steps, step = SGD(batch=N // 2).choose_step(problem, 1, torch.Generator().manual_seed(0))
    largest = float(torch.linalg.eigvalsh(rows[: N // 2].mT @ rows[: N // 2])[-1])
    assert steps == 2 and 0.5 < step * (2 * largest + 1) <= 1
