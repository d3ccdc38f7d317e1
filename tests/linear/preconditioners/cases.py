"""What the preconditioners are tried on."""

from __future__ import annotations

import torch
from torch import Tensor

import lapwing as lw
from lapwing.linear.problem import Problem
from lapwing.posteriors import MatrixFreePosterior
from tests.posterior_cases import Linearised, problem


def setting(name: str = "images", prior: lw.Isotropic | None = None) -> tuple[Problem, Linearised]:
    """A problem of products, and the same one as dense matrices."""
    case = problem(name)
    structure = lw.MatrixFree(lw.solvers.CG())
    posterior = case.fit(lw.Laplace(case.likelihood, prior=prior or lw.Isotropic(0.7), structure=structure))
    assert isinstance(posterior, MatrixFreePosterior)
    return posterior.problem, Linearised(case, posterior.network)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-10)
