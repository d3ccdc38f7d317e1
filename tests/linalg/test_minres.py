"""Minimal residuals for many shifts."""

from __future__ import annotations

import torch

from lapwing.linalg import Dense, Diagonal
from lapwing.linalg.minres import shifted_minres
from lapwing.linalg.shifted_cg import shifted_conjugate_gradients
from tests.linalg.cases import eye, normal, spd, spectrum


def test_indefinite_systems() -> None:
    matrix, b = spd(20, 100.0) - eye(20), normal(20, 2)
    shifts = torch.tensor([-0.5, 0.0, 0.3]).double()
    solution = shifted_minres(Dense(matrix), b, shifts, rtol=1e-9)
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
    solution = shifted_minres(Dense(matrix), b, torch.tensor([shift]).double(), max_iterations=6, preconditioner=p)
    torch.testing.assert_close(solution.residual[0, 0], expected, rtol=1e-7, atol=0)


def test_it_falls_at_every_step_and_never_behind_conjugate_gradients() -> None:
    operator, b, shift = Dense(spd(30, 1e4)), normal(30), torch.tensor([1e-3]).double()
    falling = [shifted_minres(operator, b, shift, max_iterations=j).residual.item() for j in range(1, 25)]
    other = [shifted_conjugate_gradients(operator, b, shift, max_iterations=j).residual.item() for j in range(1, 25)]
    assert falling == sorted(falling, reverse=True)
    assert all(mine <= theirs * (1 + 1e-9) for mine, theirs in zip(falling, other, strict=True))
