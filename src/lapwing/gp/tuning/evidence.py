"""Choosing a kernel's hyper-parameters and the noise by the exact evidence."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, final

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lapwing.gp.tuning.tunable import LeastNoise, P, Tunable, step_of
from lapwing.ground.errors import ConvergenceWarning, NumericalError, check_count, warn
from lapwing.ground.progress import Bar
from lapwing.ground.results import Stopped

logger = logging.getLogger(__name__)

REACH = 1e4
"""Hyper-parameters may grow and shrink by this factor from where they start, the noise by its square."""

LAST = 3
"""Steps whose gains are added up to see whether a climb is over."""

GAIN = 1e-4
"""A climb ends where they gained fewer nats."""

FAILED = 1e3
"""What is minimised where a step has failed, over its best value: the line search takes a much shorter one."""

EDGE = 1e-6
"""How near to a limit, in logarithms, a hyper-parameter ended at it."""


@final
@dataclass(frozen=True)
class Evidence:
    """Type-II maximum likelihood: the hyper-parameters under which the data are likeliest, by L-BFGS.

        ∂ log p(y) = ½ Σ_ij (α αᵀ - C⁻¹)_ij ∂C_ij,   C = K + N,   α = C⁻¹ (y - H β)    (Antorán 2024, equation 3.28)

    Args:
        steps: Most steps.
        noise: Whether the noise is chosen too.

    Raises:
        ConfigError: If there is no step.

    Cost:
        A step: a Cholesky factor and its inverse, ``n³`` multiplications, and ``n² p`` for p length-scales; ``n²``
        numbers, in float64.

    Example:
        >>> import lapwing as lw
        >>> x = torch.linspace(0, 6, 50, dtype=torch.float64)[:, None]
        >>> posterior = lw.GP().fit((x, x.sin() + 0.1 * torch.cos(40 * x)))
        >>> float(Evidence().tune(posterior).log_marginal()) > float(posterior.log_marginal())
        True
    """

    steps: int = 200
    noise: bool = True

    def __post_init__(self) -> None:
        check_count("steps", self.steps)

    def tune(self, posterior: P, progress: bool | None = None) -> P:
        """The posterior with the kernel and noise it chose.

        Args:
            posterior: The posterior.
            progress: Whether to show a progress bar; ``None`` for after two seconds, in a terminal or notebook.

        Warns:
            ConvergenceWarning: If the steps were too few, or a hyper-parameter ended at a limit.
        """
        exact = posterior.select(slice(None))
        best, stopped = climbed(exact, self.steps, self.noise, progress, floor=posterior.least_noise())
        if stopped == "iterations":
            warn(f"the evidence still rose after {self.steps} steps. Try a larger steps=", ConvergenceWarning)
        return posterior.with_log_hyperparameters(best.log_hyperparameters()).with_trace(best.trace)


def limits_of(posterior: Tunable, noise: bool) -> tuple[Float[Tensor, " h"], Float[Tensor, " h"]]:
    """The lowest and the highest that each logarithm may become."""
    logs = posterior.log_hyperparameters()
    noises = len(posterior.least_noise().variances)
    reach = torch.full_like(logs, math.log(REACH))
    reach[len(logs) - noises :] *= 2 if noise else 0
    return logs - reach, logs + reach


def climbed(
    start: P, steps: int, noise: bool, progress: bool | None, *, floor: LeastNoise, gain: float = GAIN
) -> tuple[P, Stopped]:
    """The posterior of the highest exact evidence, and why no higher one was looked for.

    By L-BFGS with a memory as long as there are hyper-parameters; warned of where it was interrupted, or at a limit.

    Args:
        start: Where to start.
        steps: Most steps.
        noise: Whether the noise is chosen too.
        progress: Whether to show a progress bar; ``None`` for after two seconds, in a terminal or notebook.
        floor: Least noise variances.
        gain: It ends where its last three steps together gained fewer nats.
    """
    from scipy.optimize import minimize  # half a second to import

    first = start.log_hyperparameters()
    lowest, highest = limits_of(start, noise)
    least = floor.variances.log()
    if noise and len(least):
        noises = slice(len(lowest) - len(least), None)
        lowest[noises] = torch.maximum(lowest[noises], torch.minimum(least, first[noises]))
    limits = list(zip(lowest.tolist(), highest.tolist(), strict=True))
    with Bar("evidence", most=steps, progress=progress) as bar:
        climb = _Climb(start, highest > lowest, gain, bar)
        try:
            found = minimize(
                climb.look,
                first.numpy(),
                jac=True,
                method="L-BFGS-B",
                bounds=limits,
                options={"maxiter": steps, "maxcor": len(first), "ftol": 0.0, "gtol": 0.0},
                callback=climb.step,
            )
            end = found.x
            stopped: Stopped = "converged" if found.nit < steps else "iterations"
        except KeyboardInterrupt:
            if climb.best == -math.inf:
                raise
            warn(
                f"interrupted after {len(climb.values) - 1} steps: these choices are the best so far",
                ConvergenceWarning,
            )
            end = climb.posterior.log_hyperparameters().numpy()
            stopped = "interrupted"
    warn_of_limits(start.hyperparameter_names(), end, limits, floor)
    return climb.highest(), stopped


@final
class _Climb(Generic[P]):
    """What the optimiser sees of the evidence, and what came of it.

    Args:
        start: Where the climb starts.
        free: Which hyper-parameters may move.
        gain: Nats that three steps together must gain for another.
        bar: Of the steps.
    """

    def __init__(self, start: P, free: Bool[Tensor, " h"], gain: float, bar: Bar) -> None:
        self.start = start
        self.free = free
        self.gain = gain
        self.bar = bar
        self.best = -math.inf
        self.posterior = start
        self.scale = 1.0
        self.trace = list(start.trace)
        self.values = list[float]()

    def look(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """What is minimised, and its gradient: the negative evidence, so scaled that the first step has length 1."""
        posterior = self.posterior.with_log_hyperparameters(torch.as_tensor(x))
        first = self.best == -math.inf
        try:
            value, gradient = posterior.evidence_and_gradient()
        except NumericalError:  # a step so long that K + N is singular up to rounding
            if first:
                raise
            return FAILED * self.scale * (1 + abs(self.best)), np.zeros(len(x))
        if first:
            self.scale = 1 / (float(gradient[self.free].norm()) or 1.0)
            self.trace.append(step_of(posterior, value))
            self.values.append(value)
        if value > self.best:
            self.best = value
            self.posterior = posterior
        return -self.scale * value, -self.scale * gradient.numpy()

    def step(self, intermediate_result: Any) -> None:
        """Note a step of the optimiser, and end the climb where the last few gained too little."""
        value = -float(intermediate_result.fun) / self.scale
        posterior = self.start.with_log_hyperparameters(torch.as_tensor(intermediate_result.x))
        self.trace.append(step_of(posterior, value))
        self.values.append(value)
        self.bar.update(said=f"log evidence {value:.6g} nats")
        if len(self.values) > LAST and value - self.values[-1 - LAST] < self.gain:
            raise StopIteration

    def highest(self) -> P:
        """The posterior of the highest evidence met, with the steps."""
        if self.values[-1] < self.best:  # the line search passed over it
            self.trace.append(step_of(self.posterior, self.best))
        return self.posterior.with_trace(tuple(self.trace))


def warn_of_limits(
    names: Sequence[str], logs: np.ndarray, limits: list[tuple[float, float]], floor: LeastNoise
) -> None:
    """Warn of hyper-parameters that ended where the search does.

    Args:
        names: What they are.
        logs: Where they ended.
        limits: Lowest and highest value of each.
        floor: Least noise variances, of the last of them.
    """
    ended = list[str]()
    unvarying = list[str]()
    for name, value, (low, high) in zip(names, logs, limits, strict=True):
        if low < high and not low + EDGE < value < high - EDGE:
            ended.append(name)
        if "lengthscale[" in name and value >= high - EDGE:
            unvarying.append(name)
    if unvarying and len(unvarying) < sum("lengthscale[" in name for name in names):  # of no use, which is no mistake
        logger.info("%s ended at the upper limit: the targets do not vary along them", ", ".join(unvarying))
        ended = [name for name in ended if name not in unvarying]
    least = floor.variances.log().tolist()
    first = len(names) - len(least)
    rounded = list[str]()
    for name, value, low in zip(names[first:], logs[first:], least, strict=True):
        if name in ended and value <= low + EDGE:
            rounded.append(name)
            ended.remove(name)
    if rounded:
        warn(_of_rounding(rounded, floor), ConvergenceWarning)
    if ended:
        warn(
            f"{', '.join(ended)} ended at a limit of the search, a factor {REACH:g} from the start ({REACH**2:g} for "
            "noise). The data may say nothing of it: try a simpler kernel, or a start nearer to what is expected",
            ConvergenceWarning,
        )


def _of_rounding(names: Sequence[str], floor: LeastNoise) -> str:
    """Why noise variances ended at what solves resolve, and what helps."""
    found = f"{', '.join(names)} ended at {float(floor.variances.min()):.1e}, the least that "
    if floor.dtype == torch.float32:
        return f"{found}float32 resolves: it may be smaller, and intervals too wide. Try dtype=torch.float64"
    return (
        f"{found}float64 resolves: the targets show no noise. Try more rows, without copies that are nearly alike, or "
        "Gaussian(precision) with a noise that is known and Evidence(noise=False)"
    )
