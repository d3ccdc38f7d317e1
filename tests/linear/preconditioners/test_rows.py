"""The rows with the largest output curvature against dense matrices."""

from __future__ import annotations

import pytest
import torch

import lapwing as lw
from lapwing.ground.errors import ConfigError, TooLargeError
from lapwing.posteriors import MatrixFreePosterior
from tests.posterior_cases import Linearised, Problem, problem, refused

NAMES = ("categorical", "images", "tokens", "pixels", "gaussian-per-output", "poisson")


def fitted(case: Problem, batch: int = 4) -> MatrixFreePosterior:
    recipe = lw.Laplace(case.likelihood, prior=lw.Isotropic(0.7), structure=lw.MatrixFree(lw.solvers.CG()))
    posterior = recipe.fit(case.model, case.batches(batch))
    assert isinstance(posterior, MatrixFreePosterior)
    return posterior


@pytest.mark.parametrize("name", NAMES)
def test_all_rows_are_the_precision_itself(name: str) -> None:
    case = problem(name)
    posterior = fitted(case)
    precision = lw.preconditioners.TopRows(10_000).approximate(posterior.problem).dense()
    expected = Linearised(case, posterior.network).ggn + 0.7 * torch.eye(posterior.network.size).double()
    torch.testing.assert_close(precision, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rank", [1, 5, 9])
def test_some_rows_are_those_of_the_largest_eigenvalues(name: str, rank: int) -> None:
    case = problem(name)
    posterior = fitted(case)
    dense = Linearised(case, posterior.network)
    f = dense.outputs(case.x)
    y = case.likelihood.canonical_targets(f, case.y)
    values, vectors = torch.linalg.eigh(case.likelihood.hessian(f, y).flatten(0, -3))
    rows = torch.einsum("nck,ncd->nkd", vectors, dense.jacobian(case.x).flatten(0, -3)).flatten(0, 1)
    kept = values.flatten() >= values.flatten().sort(descending=True).values[rank - 1]
    expected = (rows[kept].mT * values.flatten()[kept]) @ rows[kept]
    factor = lw.preconditioners.TopRows(rank).curvature(posterior.problem).factor
    assert factor.shape[1] == rank
    if name != "gaussian-per-output":  # where all examples have the same eigenvalues
        torch.testing.assert_close(factor @ factor.mT, expected, rtol=1e-9, atol=1e-10)
    assert torch.linalg.eigvalsh(dense.ggn - factor @ factor.mT).min() > -1e-9


def test_a_solve_with_them_takes_few_iterations() -> None:
    case = problem("images")
    posterior = fitted(case)
    b = torch.ones(posterior.network.size, dtype=torch.float64)
    plain = lw.solvers.CG(rtol=1e-8).solve(posterior.problem, b)
    helped = lw.solvers.CG(rtol=1e-8, preconditioner=lw.preconditioners.TopRows(25)).solve(posterior.problem, b)
    assert helped.converged
    assert helped.iterations < plain.iterations / 2


def test_of_a_network_that_is_certain_of_everything_nothing_is_left() -> None:
    case = problem("categorical")
    with torch.no_grad():
        case.model[-1].weight.zero_()
        case.model[-1].bias.zero_()[0] = 1e4
    posterior = fitted(case)
    assert not lw.preconditioners.TopRows(5).curvature(posterior.problem).factor.any()


def test_what_does_not_fit_is_refused() -> None:
    posterior = fitted(problem("categorical"))
    with refused(TooLargeError, "at most 100 bytes"):
        lw.preconditioners.TopRows(5, max_bytes=100).approximate(posterior.problem)
    with pytest.raises(ConfigError, match="rank"):
        lw.preconditioners.TopRows(0)
