"""L-BFGS from the trained weights: gradients alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import minimize
from torch import Tensor

from lapwing.ground.errors import check_count, check_positive
from lapwing.methods.hessian_free.inner.base import Inner, Refitted
from lapwing.methods.hessian_free.refit import Fits, Refit


@final
@dataclass(frozen=True)
class LBFGS(Inner):
    """Limited-memory quasi-Newton steps with a line search, over all the data, one fit after the other.

    The line search compares losses: a fit that lowers a loss of L nats by less than ``ε L`` is not found. Use it for
    networks in float64.

    Args:
        rtol: Largest entry of the gradient, relative to that of ``λ ∇r``, at which a fit is done.
        iterations: Most iterations of a fit.
        memory: Pairs kept.

    Raises:
        ConfigError: If a number is not positive.

    Cost:
        About one gradient an iteration; ``2 d memory`` numbers.

    Example:
        >>> LBFGS(iterations=200)
        LBFGS(rtol=1e-05, iterations=200, memory=30)
    """

    rtol: float = 1e-5
    iterations: int = 2000
    memory: int = 30

    def __post_init__(self) -> None:
        check_positive("rtol", self.rtol)
        check_count("iterations", self.iterations)
        check_count("memory", self.memory)

    def step(self, dtype: torch.dtype) -> float:
        """See ``Inner.step``."""
        return 1e-2 if dtype == torch.float64 else 1e-1

    def solve(self, refit: Refit, fits: Fits, start: Float[Tensor, "f d"]) -> Refitted:
        """See ``Inner.solve``."""
        reward = fits.scales[:, None] * refit.reward(fits)
        found = [self._one(refit, fits.take(number), start[number], reward[number]) for number in _each(len(fits))]
        changes, evaluations = torch.cat([part[0] for part in found]), sum(part[1] for part in found)
        left = refit.slopes(fits, changes)[0].abs().amax(1) / reward.abs().amax(1).clamp(min=1e-300)
        return Refitted(changes, left, evaluations + len(fits), 0)

    def _one(
        self, refit: Refit, fit: Fits, start: Float[Tensor, "1 d"], reward: Float[Tensor, "1 d"]
    ) -> tuple[Float[Tensor, "1 d"], int]:
        """One fit, and its evaluations. Changes are measured in prior standard deviations, losses from the start's."""
        unit = refit.prior.rsqrt()
        base = refit.slopes(fit, start)[1]

        def objective(z: np.ndarray) -> tuple[float, np.ndarray]:
            change = torch.tensor(z, dtype=torch.float64, device=unit.device)[None] * unit
            gradient, value = refit.slopes(fit, change)
            return float(value - base), (gradient * unit)[0].cpu().numpy()

        goal = self.rtol * float((reward * unit).abs().max())
        options = {"maxiter": self.iterations, "maxfun": 2 * self.iterations, "maxcor": self.memory}
        options |= {"ftol": 0.0, "gtol": goal}
        first = (start / unit)[0].cpu().numpy()
        result = minimize(objective, first, jac=True, method="L-BFGS-B", options=options)
        return torch.tensor(result.x, dtype=torch.float64, device=unit.device)[None] * unit, int(result.nfev) + 1


def _each(count: int) -> Tensor:
    return torch.arange(count)[:, None]
