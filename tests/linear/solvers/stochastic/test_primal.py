"""Primal descent in the function view against dense solves, the source's table, and Titsias' inducing points."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor

from lapwing.gp import KernelMatrix, Matern
from lapwing.ground.errors import ConfigError
from lapwing.linalg import Diagonal
from lapwing.linear.problem import Problem
from lapwing.linear.solvers import SDD, PrimalSGD
from lapwing.linear.solvers.stochastic.primal import thinned
from tests.operators import GramMatrix
from tests.posterior_cases import normal


def problem(n: int, lengthscale: float, noise: float) -> tuple[Problem, Tensor, Tensor]:
    """A problem, its kernel matrix, and its noise, which differs."""
    x = torch.rand(n, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrix = KernelMatrix(Matern(lengthscale), x)
    each = noise * torch.linspace(0.8, 1.2, n, dtype=torch.float64)
    return Problem(matrix, Diagonal(each)), matrix.dense(), torch.diag(each)


def length(rest: Tensor, whole: Tensor) -> float:
    return float(torch.linalg.vector_norm(rest) / torch.linalg.vector_norm(whole))


def test_it_predicts_at_the_data_long_before_it_solves_and_the_dual_does_both() -> None:
    """As in the reference run: K-norm 0.95 and K²-norm 0.3 after steps in which the dual is at 0.04 and 0.004."""
    system, kernel, noise = problem(400, 0.4, 0.01)
    b = torch.linalg.cholesky(kernel + noise) @ normal(400, 1)
    exact = torch.linalg.solve(kernel + noise, b)

    def errors(solver: PrimalSGD | SDD) -> tuple[float, float]:
        error = solver.solve(system, b).value - exact
        return float(((error * (kernel @ error)).sum() / (exact * (kernel @ exact)).sum()).sqrt()), length(
            kernel @ error, kernel @ exact
        )

    primal, dual = errors(PrimalSGD(steps=400, batch=64, features=20)), errors(SDD(steps=400, batch=64))
    assert 0.7 < primal[0] < 1.0 and 0.2 < primal[1] < 0.5
    assert dual[0] < 0.5 * primal[0] and dual[1] < 0.3 * primal[1]


def test_a_step_beyond_the_limit_diverges_and_is_halved(caplog: pytest.LogCaptureFixture) -> None:
    system, kernel, _ = problem(150, 0.4, 0.01)
    largest = float(torch.linalg.eigvalsh(kernel)[-1])
    limit = 2 * 1.9 / (2.8 * largest * (largest + 0.01)) * 150
    with caplog.at_level(logging.INFO, logger="lapwing"):
        PrimalSGD(steps=200, batch=75, step=0.6 * limit).solve(system, normal(150, 1))
        assert not caplog.messages
        PrimalSGD(steps=200, batch=75, step=4 * limit).solve(system, normal(150, 1))
    assert "diverged" in caplog.messages[0]


def test_its_minimum_is_the_solution_and_draws_with_less_noise_have_the_same() -> None:
    system, kernel, noise = problem(60, 0.15, 0.5)
    values, rest = normal(60, 2), normal(60, 2, seed=1)
    solver, exact = PrimalSGD(steps=1_000, batch=30, features=400), torch.linalg.solve(kernel + noise, values + rest)
    assert length(kernel @ (solver.solve(system, values + rest).value - exact), kernel @ exact) < 0.05
    drawn = solver.drawn(system, values, rest)
    assert length(kernel @ (drawn.value - exact), kernel @ exact) < 0.1  # the noise of the features is that of γ
    left = (kernel + noise) @ drawn.value - values - rest
    expected = torch.linalg.vector_norm(left, dim=0) / torch.linalg.vector_norm(values + rest, dim=0)
    torch.testing.assert_close(drawn.residual, expected)


def test_inducing_points_have_the_mean_of_titsias() -> None:
    system, kernel, noise = problem(80, 0.3, 0.5)
    b, generator = normal(80, 1), torch.Generator().manual_seed(0)
    solver = PrimalSGD(steps=800, batch=40, features=400, step=0.6, inducing=0.7)
    solution = solver.solve(system, b)
    kept = thinned(system.curvature, 0.7, generator)
    assert len(kept) < 80 and set(solution.value.nonzero()[:, 0].tolist()) == set(kept.tolist())
    across = kernel[:, kept]
    exact = torch.linalg.solve(across.mT @ torch.linalg.solve(noise, across) + kernel[kept][:, kept], across.mT)
    weights = exact @ torch.linalg.solve(noise, b)
    assert length(kernel @ solution.value - across @ weights, across @ weights) < 0.05
    assert float(solution.residual) < 0.05


def test_inducing_points_are_no_solution_while_predictions_are_off_however_small_the_residual() -> None:
    """The largest eigenvalues of the normal equations are solved long before what the points predict is near."""
    system, kernel, noise = problem(150, 0.4, 0.02)
    b = torch.linalg.cholesky(kernel + noise) @ normal(150, 2)
    solution = PrimalSGD(steps=1_000, batch=75, features=400, inducing=0.7, rtol=0.02).solve(system, b)
    kept = solution.value[:, 0].nonzero()[:, 0]
    across = kernel[:, kept]
    normal_matrix = across.mT @ torch.linalg.solve(noise, across) + kernel[kept][:, kept]
    titsias = across @ torch.linalg.solve(normal_matrix, across.mT @ torch.linalg.solve(noise, b))
    weight = noise.diagonal().rsqrt()[:, None]
    off = torch.linalg.vector_norm(weight * (kernel @ solution.value - titsias), dim=0)
    true = off / torch.linalg.vector_norm(weight * b, dim=0)
    assert float(solution.residual.max()) < 0.02 < float(true.max())
    assert solution.stopped == "iterations"
    assert solution.error is not None
    assert bool((solution.error < 1.2 * true).all()) and bool((solution.error > 0.8 * true).all())


def test_points_are_thinned_to_a_distance() -> None:
    x = torch.tensor([[0.0], [0.01], [1.0], [1.01], [5.0]], dtype=torch.float64)
    gram = KernelMatrix(Matern(1.0), x)
    kept = thinned(gram, 0.9, torch.Generator().manual_seed(0))
    assert len(kept) == 3 and {int(i) // 2 for i in kept} == {0, 1, 2}


def test_features_of_a_matrix_come_to_it() -> None:
    system = problem(5, 0.4, 0.1)[0]
    for gram in (system.curvature, GramMatrix(Diagonal(torch.tensor([1.0, 3.0]).double()))):
        phi = gram.features(20_000, torch.Generator().manual_seed(0))
        torch.testing.assert_close(phi @ phi.mT, gram.dense(), rtol=0, atol=0.1)
        index = torch.tensor([1])
        assert gram.features(7, torch.Generator(), index).shape == (1, 7)
        torch.testing.assert_close(gram.rows(index, index), gram.dense()[1:2, 1:2])


def test_a_number_that_makes_no_sense_is_named() -> None:
    for options in ({"steps": 0}, {"features": 0}, {"inducing": 1.5}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            PrimalSGD(**options)  # type: ignore[arg-type]
