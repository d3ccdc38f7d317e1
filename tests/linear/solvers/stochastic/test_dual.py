"""Stochastic dual descent against dense solves: its rule for the step, what it does when one diverges, its averages."""

from __future__ import annotations

import logging
from itertools import count

import pytest
import torch
from torch import Tensor

from lapwing.ground import progress
from lapwing.ground.errors import ConfigError, NumericalError
from lapwing.linalg import Diagonal
from lapwing.linear.problem import Problem
from lapwing.linear.solvers import CG, SDD
from lapwing.linear.solvers.stochastic.dual import LEAST, stable
from lapwing.linear.solvers.stochastic.kernel_rows import SAFE
from lapwing.methods.gp import KernelMatrix, Matern
from tests.posterior_cases import normal

N, NOISE = 300, 0.05


def problem() -> tuple[Problem, Tensor]:
    x = torch.rand(N, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrix = KernelMatrix(Matern(0.4), x)
    noise = torch.full((N,), NOISE, dtype=torch.float64)
    return Problem(matrix, Diagonal(noise)), matrix.dense() + torch.diag(noise)


def test_it_comes_to_the_solution_in_the_norm_of_the_kernel() -> None:
    kernel, dense = problem()
    b = normal(N, 3)
    solution = SDD(steps=6_000, batch=32, rtol=1e-6).solve(kernel, b)
    error = solution.value - torch.linalg.solve(dense, b)
    norms = (error * (dense @ error)).sum(0) / (b * torch.linalg.solve(dense, b)).sum(0)
    assert float(norms.max()) < 1e-10
    residual = torch.linalg.vector_norm(b - dense @ solution.value, dim=0) / torch.linalg.vector_norm(b, dim=0)
    torch.testing.assert_close(solution.residual, residual)
    assert solution.converged and solution.iterations < 6_000


def test_the_step_is_a_safe_part_of_the_longest_stable_one() -> None:
    kernel, dense = problem()
    longest = 2 * 1.9 / (2.8 * torch.linalg.eigvalsh(dense)[-1]) * N
    batch, found = stable(kernel, 0.9, 128, torch.Generator().manual_seed(0))
    assert found == pytest.approx(SAFE * float(longest), rel=0.05)
    assert batch == pytest.approx(2 * float(longest) * (1 + NOISE) / (2 * 0.1), rel=0.05)
    alike = Problem(KernelMatrix(Matern(9.0), normal(N, 3)), Diagonal(torch.full((N,), NOISE, dtype=torch.float64)))
    assert stable(alike, 0.9, 128, torch.Generator().manual_seed(0))[0] == LEAST


def test_a_step_by_few_coordinates_is_as_short_as_their_noise_asks(caplog: pytest.LogCaptureFixture) -> None:
    kernel, dense = problem()
    b = normal(N, 1)
    exact = torch.linalg.solve(dense, b)

    def error(step: float) -> float:
        rest = SDD(steps=1000, batch=4, step=step, rtol=1e-6).solve(kernel, b).value - exact
        return float((rest * (dense @ rest)).sum() / (b * exact).sum())

    batch, found = stable(kernel, 0.9, 4, torch.Generator().manual_seed(0))
    assert (batch, found) == (4, pytest.approx(SAFE * 2 * 0.1 * 4 / (1 + NOISE)))
    with caplog.at_level(logging.INFO, logger="lapwing"):
        assert error(found) < 0.2
        assert not any("diverged" in message for message in caplog.messages)
        error(4 * found)
    assert any("diverged" in message for message in caplog.messages)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_step_that_diverges_is_halved_until_it_does_not(momentum: float) -> None:
    kernel, dense = problem()
    b = normal(N, 1)
    solver = SDD(steps=4_000, batch=64, rtol=1e-3, step=80.0, momentum=momentum)
    solution = solver.solve(kernel, b).value
    assert float(torch.linalg.vector_norm(b - dense @ solution) / torch.linalg.vector_norm(b)) < 0.05
    with pytest.raises(NumericalError, match="converges"):
        SDD(steps=400, batch=64, step=1e9).solve(kernel, b)


def test_it_goes_on_from_where_another_solve_ended() -> None:
    kernel, dense = problem()
    b = normal(N, 2)
    near = torch.linalg.solve(dense, b) * (1 + 1e-7)
    solution = SDD(steps=200, batch=32, rtol=1e-5).solve(kernel, b, initial=near)
    assert solution.converged and solution.iterations <= 10


def test_a_descent_of_minutes_says_so(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, _ = problem()
    ticks = count()
    monkeypatch.setattr(progress, "clock", lambda: float(next(ticks)))
    with caplog.at_level(logging.INFO, logger="lapwing"):
        SDD(steps=90, batch=32, rtol=1e-6).solve(kernel, normal(N, 1))
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("dual descent: at most ")
    assert caplog.messages[0].endswith(" s more, for 88 of 90 steps")


def test_the_solution_says_how_far_its_predictions_are_at_most() -> None:
    kernel, _ = problem()
    noise = NOISE * torch.linspace(0.5, 2.0, N, dtype=torch.float64)[:, None]
    uneven, weight = Problem(kernel.curvature, Diagonal(noise[:, 0])), noise.rsqrt()
    b = normal(N, 2)
    solution = SDD(steps=60, batch=32, rtol=1e-9).solve(uneven, b)
    matrix = kernel.curvature.dense()
    off = matrix @ (solution.value - torch.linalg.solve(matrix + noise.diagflat(), b))
    true = torch.linalg.vector_norm(weight * off, dim=0) / torch.linalg.vector_norm(weight * b, dim=0)
    assert solution.stopped == "iterations" and solution.error is not None
    assert bool((true < solution.error).all()) and bool((solution.error < 10 * true).all())
    assert f"predictions off by {100 * float(solution.error.max()):.2g} % of their scale" in solution.distance


@pytest.mark.parametrize("kind", [SDD, CG])
def test_a_solve_ends_with_its_seconds_and_says_so(kind: type[SDD] | type[CG]) -> None:
    kernel, _ = problem()
    found = kind(rtol=1e-12, seconds=1e-6).solve(kernel, normal(N, 2))
    assert found.stopped == "seconds" and found.iterations == 1 and float(found.residual.max()) > 1e-6
    with pytest.raises(ConfigError, match="seconds"):
        kind(seconds=-1.0)


def test_a_few_steps_go_somewhere() -> None:
    case = Problem(KernelMatrix(Matern(0.01), torch.arange(4.0).double()[:, None]), Diagonal(torch.ones(4).double()))
    found = SDD(steps=5).solve(case, torch.ones(4).double())
    assert float(found.value.min()) > 0.1 and float(found.residual) < 1


def test_a_number_that_makes_no_sense_is_named() -> None:
    for options in ({"steps": 0}, {"momentum": 1.0}, {"step": -1.0}, {"batch": 0}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            SDD(**options)  # type: ignore[arg-type]
