"""The tangent model of small problems as dense matrices."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

import lapwing as lw
from lapwing.linalg import Diagonal
from lapwing.linear.tangent import Target
from tests.posterior_cases import Linearised, Problem, normal, problem

SCALE = 1.7


@cache
def fitted(name: str) -> tuple[Problem, lw.Posterior]:
    case = problem(name)
    return case, case.fit(lw.Laplace(case.likelihood, structure=lw.Diagonal()))


class Dense:
    """The tangent model of a problem, its Jacobian a matrix."""

    def __init__(self, name: str, target: Target) -> None:
        self.case, posterior = fitted(name)
        self.training = posterior.training
        self.linear = Linearised(self.case, posterior.network)
        self.theta, self.size = self.linear.theta, posterior.network.size
        self.affine = target == "affine"
        self.jacobian = self.linear.jacobian(self.case.x)
        self.f = self.linear.outputs(self.case.x)
        self.y = self.case.likelihood.canonical_targets(self.f, self.case.y)

    def outputs(self, w: Tensor) -> Tensor:
        return self.f + self.jacobian @ (w - self.theta) if self.affine else self.jacobian @ w

    def nll(self, w: Tensor) -> Tensor:
        return self.case.likelihood.nll(self.outputs(w), self.y).sum()

    def ggn(self, w: Tensor) -> Tensor:
        b = self.case.likelihood.hessian(self.outputs(w), self.y).flatten(0, -3)
        j = self.jacobian.flatten(0, -3)
        return torch.einsum("nci,ncd,ndj->ij", j, b, j)

    def mode(self, prior: Tensor, scale: float) -> Tensor:
        def objective(w: Tensor) -> Tensor:
            return scale * self.nll(w) + 0.5 * (prior * w.square()).sum()

        def wrapped(function: Callable[[Tensor], Tensor]) -> Callable[[Any], Any]:
            return lambda w: function(torch.as_tensor(w)).numpy()

        found = minimize(
            wrapped(objective),
            np.zeros(self.size),
            jac=wrapped(torch.func.grad(objective)),
            hess=wrapped(torch.func.hessian(objective)),
            method="trust-exact",
            options={"gtol": 1e-11},
        )
        w = torch.as_tensor(found.x)
        for _ in range(3):
            w = w - torch.linalg.solve(torch.func.hessian(objective)(w), torch.func.grad(objective)(w))
        return w


def somewhere(size: int, seed: int = 5) -> Tensor:
    return 0.5 * normal(size, seed=seed)


def uneven(size: int) -> Diagonal:
    return Diagonal(torch.logspace(-1, 1, size, dtype=torch.float64))
