"""Means before data that are far from 0: an offset of targets or inputs changes nothing but the offset."""

from __future__ import annotations

import pickle

import pytest
import torch

import lapwing as lw
from lapwing.gp import GP, Matern
from lapwing.gp.trend import Mean, least_squares, orthonormalised
from tests.gp.regression.test_posterior import data, predicted
from tests.posterior_cases import normal

FAR = 1e8


@pytest.mark.parametrize("mean", ["constant", "linear"])
def test_a_loose_solve_does_not_see_what_the_mean_explains(mean: Mean) -> None:
    (x, y), new = data(150, c=2), normal(5, 3, seed=2)
    slope = 0.01 * FAR * (mean == "linear") * torch.arange(6).double().view(3, 2)
    recipe = GP(Matern(1.5), lw.Gaussian(100.0), mean=mean, solver=lw.solvers.CG(rtol=1e-2), samples=8, features=50)
    exact = GP(Matern(1.5), lw.Gaussian(100.0), mean=mean).fit((x, y))
    far = recipe.fit((x, y + 0.01 * FAR + x @ slope))
    torch.testing.assert_close(far.mean(new) - 0.01 * FAR - new @ slope, exact.mean(new), rtol=0, atol=0.03)
    for again in (far.with_solver(lw.solvers.CG(rtol=1.1e-2)), pickle.loads(pickle.dumps(far))):
        assert again.solution.iterations == 0


@pytest.mark.parametrize("solver", ["auto", lw.solvers.CG(rtol=1e-10)], ids=str)
def test_a_linear_mean_does_not_see_where_inputs_are(solver: lw.solvers.CG) -> None:
    (x, y), new = data(), normal(5, 3, seed=2)
    recipe = GP(Matern(1.5), lw.Gaussian(20.0), mean="linear", solver=solver, samples=8, features=50)
    near, far = recipe.fit((x, y)), recipe.fit((x + FAR, y))
    close = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(far.mean(new + FAR), near.mean(new), **close)
    torch.testing.assert_close(far.evidence_and_gradient()[1], near.evidence_and_gradient()[1], **close)
    if solver == "auto":
        torch.testing.assert_close(predicted(far, new + FAR).std, predicted(near, new).std, **close)
        assert far.log_marginal() == pytest.approx(float(near.log_marginal()), rel=1e-6)


@pytest.mark.parametrize("mean", ["constant", "linear"])
def test_the_least_noise_in_single_precision_is_of_what_the_mean_leaves(mean: Mean) -> None:
    x = torch.linspace(0, 6, 60)[:, None]
    y = x[:, 0].sin() + 0.01 * normal(60).float()
    known = 300.0 if mean == "constant" else 300.0 + 50.0 * x[:, 0]
    near, far = (lw.tune(GP(1.0 * Matern(1.0), lw.Gaussian(10.0), mean=mean).fit((x, t))) for t in (y, y + known))
    assert far.likelihood.noise == pytest.approx(near.likelihood.noise, rel=0.05)
    assert near.likelihood.noise > 1e3


def test_a_part_that_does_not_tell_a_slope_is_tuned_without_it() -> None:
    x, y = data(30)
    x[:20, 1] = x[0, 1]
    part = GP(Matern(1.5), lw.Gaussian(20.0), mean="linear").fit((x, y)).select(torch.arange(20))
    without = GP(Matern(1.5), lw.Gaussian(20.0), mean="linear").fit((x[:20, [0, 2]], y[:20]))
    for found, expected in zip(part.evidence_and_gradient(), without.evidence_and_gradient(), strict=True):
        torch.testing.assert_close(torch.as_tensor(found), torch.as_tensor(expected))


def test_ordinary_least_squares_and_its_coordinates() -> None:
    x, y = data(20, c=2)
    h = torch.cat([torch.ones_like(x[:, :1]), 1e3 + x], 1)
    expected = torch.linalg.lstsq(h, y).solution
    rest, slopes = least_squares(h, h, y)
    torch.testing.assert_close(slopes, expected)
    torch.testing.assert_close(rest, y - h @ expected)
    told, unit, other = orthonormalised(h, 2 * h)
    torch.testing.assert_close(h @ told, unit, rtol=0, atol=1e-9)
    torch.testing.assert_close(other, 2 * unit, rtol=0, atol=1e-9)
    torch.testing.assert_close(unit.mT @ unit, torch.eye(4).double())
