"""Choosing a kernel's hyper-parameters and the noise by the evidence's gradient from solves that samples share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from lapwing.gp.tuning.evidence import limits_of
from lapwing.gp.tuning.tunable import D, step_of
from lapwing.ground.errors import ConvergenceWarning, check_count, check_positive, warn
from lapwing.ground.progress import track


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

    def tune(self, posterior: D, progress: bool | None = None) -> D:
        """See ``Evidence.tune``; without its warnings but that of Ctrl-C."""
        logs = posterior.log_hyperparameters().requires_grad_()
        adam = torch.optim.Adam([logs], lr=self.rate, betas=(0.9, 0.99))
        falling = torch.optim.lr_scheduler.ExponentialLR(adam, 0.1 ** (1 / self.steps))
        lowest, highest = limits_of(posterior, self.noise)
        moved = posterior
        try:
            for _ in track(range(self.steps), "evidence", progress=progress):
                logs.grad = -moved.estimated_gradient()
                adam.step()
                falling.step()
                with torch.no_grad():
                    logs.clamp_(lowest, highest)
                moved = moved.with_log_hyperparameters(logs.detach())
                moved = moved.with_trace((*moved.trace, step_of(moved)))
        except KeyboardInterrupt:
            taken = len(moved.trace) - len(posterior.trace)
            warn(f"interrupted after {taken} of {self.steps} steps: these choices are the last", ConvergenceWarning)
        return moved
