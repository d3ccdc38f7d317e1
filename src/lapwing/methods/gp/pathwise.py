"""Choosing a kernel's hyper-parameters and the noise by the evidence's gradient from solves that samples share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ConvergenceWarning, check_count, check_positive, warn
from lapwing.ground.progress import track
from lapwing.methods.gp.evidence import at, chosen, gradient_by, joined_gradient, limits_of, logs_of
from lapwing.methods.gp.process import Process


@final
@dataclass(frozen=True)
class Pathwise:
    """The evidence's gradient from the solves that draw functions, early-stopped and warm (Lin et al. 2024).

        ∂ log p(y) ≈ ½ αᵀ ∂C α - ½ mean_s α_sᵀ ∂C α_s,   α_s = C⁻¹ (f_s(X) + ε_s)

    since the α_s have covariance C⁻¹. Their f_s and ε_s stay as they were drawn while hyper-parameters move, so that
    each solve starts from the last one; those of the last step are the posterior's functions.

    Args:
        steps: Steps of Adam.
        rate: Its step, in the logarithms of the hyper-parameters; it falls to a tenth.
        noise: Whether the noise is chosen too.

    Raises:
        ConfigError: If a number is not positive.

    Cost:
        A step: solves of all functions and the mean, from the last step's, and half of K with its derivatives.
    """

    steps: int = 100
    rate: float = 0.1
    noise: bool = True

    def __post_init__(self) -> None:
        check_count("steps", self.steps)
        check_positive("rate", self.rate, "0.1")

    def tune(self, posterior: Process, progress: bool | None = None) -> Process:
        """See ``Evidence.tune``; without its warnings but that of Ctrl-C."""
        logs = logs_of(posterior).requires_grad_()
        adam = torch.optim.Adam([logs], lr=self.rate, betas=(0.9, 0.99))
        falling = torch.optim.lr_scheduler.ExponentialLR(adam, 0.1 ** (1 / self.steps))
        lowest, highest = limits_of(posterior, self.noise)
        process = posterior
        try:
            for _ in track(range(self.steps), "evidence", progress=progress):
                logs.grad = -estimated_gradient(process)
                adam.step()
                falling.step()
                with torch.no_grad():
                    logs.clamp_(lowest, highest)
                process = at(process, logs.detach())
                process = replace(process, trace=(*process.trace, chosen(process)))
        except KeyboardInterrupt:
            taken = len(process.trace) - len(posterior.trace)
            warn(f"interrupted after {taken} of {self.steps} steps: these choices are the last", ConvergenceWarning)
        return process


def estimated_gradient(process: Process) -> Float[Tensor, " h"]:
    """The gradient in ``logs_of`` from the solves of the posterior's own draws, whose covariance is ``C⁻¹``."""
    solution = process.functions.solution
    if solution.stopped == "interrupted":  # Ctrl-C ended the solve, and is to end the steps with it
        raise KeyboardInterrupt
    parts = list[tuple[Tensor, Tensor]]()
    for group in process.groups:
        columns = group.columns(solution.value.shape[1], process.data.outputs)
        drawn = solution.value[:, columns] / process.settings.samples**0.5
        alpha = process.representers[0][:, group.outputs]
        diagonal = 0.5 * (alpha.square().sum(1) - drawn.square().sum(1))
        parts.append(gradient_by(group, _weight(alpha, drawn), diagonal))
    return joined_gradient(process, parts)


def _weight(alpha: Float[Tensor, "n c"], drawn: Float[Tensor, "n s"]) -> Callable[[slice, slice], Float[Tensor, "a b"]]:
    """``½ (α αᵀ - mean_s α_s α_sᵀ)`` a tile at a time."""
    return lambda i, j: 0.5 * (alpha[i] @ alpha[j].mT - drawn[i] @ drawn[j].mT)
