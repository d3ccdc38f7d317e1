"""Draws as solves: two objectives with one minimiser, the noise of their mini-batches, and noise kept while it scales.

The objectives are ``½ |ℰ - Φ w|²_B + ½ |w - w₀|²_A`` (Antorán 2024, equation 4.16) and
``½ |Φ w|²_B + ½ |w - w₀'|²_A`` with ``w₀' = w₀ + A⁻¹ Φᵀ B ℰ`` (6.14), where ``ℰ ~ N(0, B⁻¹)`` and ``w₀ ~ N(0, A⁻¹)``.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.linalg import Diagonal
from lapwing.linear.model import Matrix
from lapwing.linear.perturbation import Perturbation
from lapwing.linear.problem import Problem
from tests.posterior_cases import normal

N, D = 40, 7
NOISE = torch.linspace(0.5, 3.0, N, dtype=torch.float64)
"""B: the noise precision of each observation."""

FEATURES = normal(N, D) * torch.linspace(0.2, 2.0, D, dtype=torch.float64)
ROWS = NOISE.sqrt()[:, None] * FEATURES
CURVATURE = ROWS.mT @ ROWS


def model(a: float = 1.0, scale: float = 1.0) -> Problem:
    return Problem.of(Matrix(ROWS), Diagonal(a * torch.linspace(0.5, 2.0, D, dtype=torch.float64)), scale)


def flat(a: float) -> Problem:
    """With one precision for all weights, and one observation to a piece."""
    return Problem.of(Matrix(ROWS, examples=1), Diagonal(torch.full((D,), a, dtype=torch.float64)))


@pytest.mark.parametrize("solver", [lw.solvers.CG(rtol=1e-10), lw.solvers.SGD(epochs=4000, batch=N, rtol=1e-7)])
def test_both_objectives_have_one_minimiser(solver: lw.solvers.Solver) -> None:
    problem, samples = model(), 3
    root = problem.root.dense()
    torch.testing.assert_close(root @ root.mT, CURVATURE)
    standard, prior = normal(root.shape[1], samples, seed=3), normal(D, samples, seed=4)
    perturbation = Perturbation(root @ standard, prior)
    w0 = problem.prior.values.rsqrt()[:, None] * prior
    targets = NOISE.rsqrt()[:, None] * torch.linalg.lstsq(ROWS.mT, root @ standard).solution  # Φᵀ B ℰ = R ε₁
    stacked = torch.cat([ROWS, torch.diag(problem.prior.values.sqrt())])
    aims = torch.cat([NOISE.sqrt()[:, None] * targets, problem.prior.values.sqrt()[:, None] * w0])
    expected = torch.linalg.lstsq(stacked, aims).solution
    found = solver.solve(problem, perturbation.right_hand_side(problem), initial=perturbation.start(problem))
    assert found.converged
    torch.testing.assert_close(found.value, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(perturbation.start(problem), w0)


# ---- the noise of mini-batches --------------------------------------------------------------------------------------


def white(size: int) -> Tensor:
    """Columns whose average square is exactly the identity."""
    return size**0.5 * torch.eye(size, dtype=torch.float64)


def gradients(problem: Problem, w: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The data's part of the gradient of both objectives, observation by observation, ``[n, d, k]``.

    Args:
        problem: The problem, one observation to a piece.
        w: Weights ``[d, k]``.
        noise: ``B^½ ℰ``, ``[n, k]``.
    """
    pieces = [part.dense() for batch in problem.curvature.parts() for part in batch]
    order = [int((torch.stack(pieces) - torch.outer(r, r)).abs().amax((1, 2)).argmin()) for r in ROWS]
    new = torch.stack([pieces[i] @ w for i in order])
    return new - ROWS[:, :, None] * noise[:, None, :], new


def gap(problem: Problem, w: Tensor, noise: Tensor) -> tuple[float, float]:
    """``Tr Var`` of the first objective's gradient from one random observation, less that of the second's; and what
    the noise adds to the square of the whole gradient of the data. Averages over the columns."""
    old, new = gradients(problem, w, noise)
    single = [N * g.square().sum((0, 1)) - g.sum(0).square().sum(0) for g in (old, new)]
    whole = [g.sum(0).square().sum(0) for g in (old, new)]
    return float((single[0] - single[1]).mean()), float((whole[0] - whole[1]).mean())


def columns() -> tuple[Tensor, Tensor]:
    """``B^½ ℰ`` and ``A^½ w₀`` of draws whose sample covariance is exact."""
    both = white(N + D)
    return both[:N], both[N:]


def test_at_the_start_the_second_varies_less_by_the_trace_of_the_curvature() -> None:
    noise, prior = columns()
    problem = flat(0.5)
    single, whole = gap(problem, problem.prior.inverse_root() @ prior, noise)
    trace = float(CURVATURE.trace())
    assert single == pytest.approx((N - 1) * trace)
    assert whole == pytest.approx(trace)


@pytest.mark.parametrize("a", [1e-3, 0.5, 20.0, 1e4])
def test_at_the_minimum_the_noise_left_in_the_gradient_is_told_by_the_effective_dimension(a: float) -> None:
    """Of all observations together it is ``Tr M - 2 Tr(M² H⁻¹) = 2 a γ - Tr M``; of single ones, leverages tell."""
    noise, prior = columns()
    problem = flat(a)
    b = Perturbation(ROWS.mT @ noise, prior).right_hand_side(problem)
    precision = CURVATURE + a * torch.eye(D).double()
    single, whole = gap(problem, torch.linalg.solve(precision, b), noise)
    gamma, trace = float(torch.linalg.solve(precision, CURVATURE).trace()), float(CURVATURE.trace())
    assert whole == pytest.approx(2 * a * gamma - trace)
    squares = ROWS.square().sum(1)
    leverage = (ROWS @ torch.linalg.inv(precision) * ROWS).sum(1)
    assert float(leverage.sum()) == pytest.approx(gamma)
    expected = N * float((squares * (1 - 2 * leverage)).sum()) - (2 * a * gamma - trace)
    assert single == pytest.approx(expected)
    assert (whole > 0) == (a > 100.0) and single > 0


# ---- noise that is kept ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("a", "s"), [(4.0, 1.0), (0.01, 1.0), (1.0, 9.0), (4.0, 0.3)])
def test_noise_kept_and_rescaled_is_noise_drawn_again_from_the_same_normals(a: float, s: float) -> None:
    """``w₀ ← √(a/a') w₀`` and ``A⁻¹ Φᵀ B ℰ ← √s (a/a') A⁻¹ Φᵀ B ℰ``: what EM does between its steps."""
    before, after = model(), model(a, s)
    kept = Perturbation.drawn(before, 5, generator=torch.Generator().manual_seed(3))
    again = Perturbation.drawn(after, 5, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(kept.right_hand_side(after), again.right_hand_side(after), rtol=1e-13, atol=0)
    assert (kept.right_hand_side(before) != kept.right_hand_side(after)).all()
    w0, pull = kept.start(before), kept.data / before.prior.values[:, None]
    shifted = a**-0.5 * w0 + s**0.5 / a * pull
    torch.testing.assert_close(after.prior @ shifted, kept.right_hand_side(after), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(kept.start(after), a**-0.5 * w0)
    assert kept.right_hand_side(before.with_prior(after.prior, s)).equal(kept.right_hand_side(after))
