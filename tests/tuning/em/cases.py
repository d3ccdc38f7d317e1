"""Linear regression as a network, with its dense evidence: what EM must maximise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

import lapwing as lw
from tests.posterior_cases import Problem, mlp, normal, seeded


class Parts(nn.Module):
    """A linear function of the inputs in two layers that see one part of them each: two groups of weights."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(first, 1, bias=False), nn.Linear(second, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        split = self.first.in_features
        return self.first(x[:, :split]) + self.second(x[:, split:])


@dataclass(frozen=True, eq=False)
class Regression:
    """``y = X w + ε`` for weights of another size in each part.

    Args:
        examples: Examples n.
        parts: Weights in each part.
        sizes: Standard deviation of the weights of each.
        noise: Standard deviation of ε.
    """

    examples: int = 24
    parts: tuple[int, int] = (3, 4)
    sizes: tuple[float, float] = (0.5, 0.5)
    noise: float = 1.0

    @cached_property
    def model(self) -> nn.Module:
        """The network, its weights of no use."""
        return seeded(lambda: Parts(*self.parts))

    @cached_property
    def x(self) -> Tensor:
        return normal(self.examples, sum(self.parts), seed=3)

    @cached_property
    def y(self) -> Tensor:
        sd = torch.tensor(self.sizes).double().repeat_interleave(torch.tensor(self.parts))
        weights = sd * normal(sum(self.parts), seed=4)
        return (self.x @ weights + self.noise * normal(self.examples, seed=5))[:, None]

    def fit(self, structure: Any = None, prior: Any = None, data: Any = None) -> lw.Posterior:
        """The posterior from a prior far too strong."""
        structure, prior = structure or lw.Full(view="weights"), prior or lw.Isotropic(500.0)
        recipe = lw.Laplace(lw.Gaussian(1.0), structure=structure, prior=prior)
        return recipe.fit(self.model, data or (self.x, self.y))

    def group(self, precisions: Tensor) -> Tensor:
        """Precision of each weight."""
        return precisions.expand(2).repeat_interleave(torch.tensor(self.parts))

    def evidence(self, precisions: Tensor, noise: float = 1.0) -> float:
        """``log N(y; 0, X A⁻¹ Xᵀ + 1 / ρ)``."""
        covariance = (self.x / self.group(precisions)) @ self.x.mT + torch.eye(self.examples).double() / noise
        return float(MultivariateNormal(torch.zeros(self.examples).double(), covariance).log_prob(self.y[:, 0]))

    def posterior(self, precisions: Tensor, noise: float = 1.0) -> tuple[Tensor, Tensor]:
        """Mode, and effective dimension of each weight: ``1 - A_ii [Λ⁻¹]_ii``."""
        prior = self.group(precisions)
        covariance = torch.linalg.inv(noise * self.x.mT @ self.x + torch.diag(prior))
        return noise * covariance @ self.x.mT @ self.y[:, 0], 1 - prior * covariance.diagonal()


@cache
def best(case: Regression, groups: int = 1, *, noisy: bool = False) -> tuple[Tensor, float]:
    """Precisions and noise of largest evidence, by a search that knows no gradient."""

    def negative(logs: np.ndarray) -> float:
        values = torch.tensor(np.exp(logs))
        return -case.evidence(values[:groups], float(values[-1]) if noisy else 1.0)

    options = {"xatol": 1e-9, "fatol": 1e-11, "maxfev": 4000}
    found = minimize(negative, np.zeros(groups + noisy), method="Nelder-Mead", options=options)
    assert found.success
    values = torch.tensor(np.exp(found.x))
    return values[:groups], float(values[-1]) if noisy else 1.0


class Counted:
    """A function that counts its calls, and at one of them is interrupted.

    Args:
        function: The function.
        interrupted: Calls before that one.
        interrupt: What happens then.
    """

    def __init__(self, function: Callable[..., Any], interrupted: int, interrupt: Callable[[], None] | None = None):
        self.function, self.interrupted, self.interrupt, self.calls = function, interrupted, interrupt, 0

    def __call__(self, *arguments: Any) -> Any:
        if self.calls == self.interrupted:
            if self.interrupt is not None:
                self.interrupt()
            raise KeyboardInterrupt
        self.calls += 1
        return self.function(*arguments)


def learnt(name: str) -> Problem:
    """A small network and data that it explains well, so that no precision is infinite."""
    model, x = mlp(3), normal(40, 3)
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(2.5)
        f = model.eval()(x)
    if name == "categorical":
        return Problem(model, lw.Categorical(), x, f.argmax(1), normal(4, 3, seed=2))
    return Problem(
        model, lw.Gaussian((0.5, 3.0, 1.0), shared=True), x, f + 0.5 * normal(40, 3, seed=1), normal(4, 3, seed=2)
    )
