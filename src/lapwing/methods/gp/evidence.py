"""Choosing a kernel's hyper-parameters and the noise by the exact evidence."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, final

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lapwing.ground.errors import ConvergenceWarning, NumericalError, check_count, warn
from lapwing.ground.progress import Bar
from lapwing.ground.results import Stopped
from lapwing.likelihoods import Gaussian
from lapwing.linalg.dense import inverted
from lapwing.linear.solvers.cholesky import Cholesky
from lapwing.methods.gp.laplace import LaplaceProcess
from lapwing.methods.gp.matrix import DENSE, KernelMatrix, contracted
from lapwing.methods.gp.process import Process
from lapwing.methods.gp.settings import Chosen, singular
from lapwing.methods.gp.trend import least_squares

P = TypeVar("P", Process, LaplaceProcess)

logger = logging.getLogger(__name__)

REACH = 1e4
"""Hyper-parameters may grow and shrink by this factor from where they start, the noise by its square."""

ROUNDING = 10.0
"""The noise variance stays above so many times the rounding of the dtype, over what the mean leaves of the targets."""

GAIN, LAST = 1e-4, 3
"""A climb ends where its last three steps together gained fewer nats."""

FAILED = 1e3
"""What is minimised where a step has failed, over its best value: the line search takes a much shorter one."""


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
        >>> from lapwing.methods.gp.recipe import GP
        >>> x = torch.linspace(0, 6, 50, dtype=torch.float64)[:, None]
        >>> process = GP().fit((x, x.sin() + 0.1 * torch.cos(40 * x)))
        >>> float(Evidence().tune(process).log_marginal()) > float(process.log_marginal())
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
        found, stopped = climbed(exact, self.steps, self.noise, progress, floor=least_noise(posterior))
        if stopped == "iterations":
            warn(f"the evidence still rose after {self.steps} steps. Try a larger steps=", ConvergenceWarning)
        return replace(at(posterior, logs_of(found)), trace=found.trace)


def logs_of(process: Process | LaplaceProcess) -> Float[Tensor, " h"]:
    """Logarithms of the kernel's hyper-parameters, and last of the noise variance where there is one."""
    noise = process.likelihood.noise
    known = [] if noise is None else [-math.log(noise)]
    return torch.cat([process.kernel.hyper, torch.tensor(known, dtype=torch.float64)])


def labels_of(process: Process | LaplaceProcess) -> list[str]:
    """What each entry of ``logs_of`` is."""
    return process.kernel.labels() + ["noise variance"] * (process.likelihood.noise is not None)


def chosen(process: Process | LaplaceProcess, log_marginal: float | None = None) -> Chosen:
    """What a step of tuning leaves in the trace."""
    return Chosen(dict(zip(labels_of(process), logs_of(process).exp().tolist(), strict=True)), log_marginal)


def at(process: P, logs: Float[Tensor, " h"]) -> P:
    """The posterior with other hyper-parameters and noise, as ``logs_of`` has them."""
    own = len(process.kernel.hyper)
    kernel = process.kernel.with_hyper(logs[:own])
    if isinstance(process, LaplaceProcess):
        return process.with_choices(kernel)
    return process.with_choices(kernel, Gaussian(math.exp(-float(logs[own]))))


def least_noise(process: Process | LaplaceProcess) -> float:
    """The noise variance below which rounding of the dtype would be taken for signal: of what the mean leaves."""
    rest = process.data.targets.double()
    if isinstance(process, Process):
        basis = process.trend(process.data.inputs.double())
        rest, _ = least_squares(basis, basis, rest)
    return ROUNDING * torch.finfo(process.data.inputs.dtype).eps * float(rest.square().mean())


def limits_of(process: Process | LaplaceProcess, noise: bool) -> tuple[Float[Tensor, " h"], Float[Tensor, " h"]]:
    """The lowest and the highest that each logarithm may become."""
    logs = logs_of(process)
    reach = torch.full_like(logs, math.log(REACH))
    reach[len(process.kernel.hyper) :] *= 2 * noise
    return logs - reach, logs + reach


def climbed(
    start: P, steps: int, noise: bool, progress: bool | None, *, floor: float, gain: float = GAIN
) -> tuple[P, Stopped]:
    """The posterior of the highest exact evidence, and why no higher one was looked for.

    By L-BFGS with a memory as long as there are hyper-parameters; warned of where it was interrupted, or at a limit.

    Args:
        start: Where to start.
        steps: Most steps.
        noise: Whether the noise is chosen too.
        progress: Whether to show a progress bar; ``None`` for after two seconds, in a terminal or notebook.
        floor: Least noise variance.
        gain: It ends where its last three steps together gained fewer nats.
    """
    from scipy.optimize import minimize  # half a second to import

    first, (lowest, highest) = logs_of(start), limits_of(start, noise)
    if noise and floor > 0 and start.likelihood.noise is not None:
        lowest[-1] = max(float(lowest[-1]), min(math.log(floor), float(first[-1])))
    limits = list(zip(lowest.tolist(), highest.tolist(), strict=True))
    with Bar("evidence", most=steps, progress=progress) as bar:
        climb = _Climb(start, highest > lowest, gain, bar)
        options = {"maxiter": steps, "maxcor": len(first), "ftol": 0.0, "gtol": 0.0}
        try:
            found = minimize(
                climb.look,
                first.numpy(),
                jac=True,
                method="L-BFGS-B",
                bounds=limits,
                options=options,
                callback=climb.step,
            )
            end, stopped = found.x, "converged" if found.nit < steps else "iterations"
        except KeyboardInterrupt:
            if climb.best == -math.inf:
                raise
            warn(
                f"interrupted after {len(climb.values) - 1} steps: these choices are the best so far",
                ConvergenceWarning,
            )
            end, stopped = logs_of(climb.process).numpy(), "interrupted"
    process = climb.highest()
    warn_of_limits(process, end, limits)
    return process, stopped


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
        self.start, self.free, self.gain, self.bar = start, free, gain, bar
        self.best, self.process, self.scale = -math.inf, start, 1.0
        self.trace, self.values = list(start.trace), list[float]()

    def look(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """What is minimised, and its gradient: the negative evidence, so scaled that the first step has length 1."""
        process, first = at(self.process, torch.as_tensor(x)), self.best == -math.inf
        try:
            value, gradient = value_and_gradient(process)
        except NumericalError:  # a step so long that K + N is singular up to rounding
            if first:
                raise
            return FAILED * self.scale * (1 + abs(self.best)), np.zeros(len(x))
        if first:
            self.scale = 1 / (float(gradient[self.free].norm()) or 1.0)
            self.trace.append(chosen(process, value))
            self.values.append(value)
        if value > self.best:
            self.best, self.process = value, process
        return -self.scale * value, -self.scale * gradient.numpy()

    def step(self, intermediate_result: Any) -> None:
        """Note a step of the optimiser, and end the climb where the last few gained too little."""
        value = -float(intermediate_result.fun) / self.scale
        self.trace.append(chosen(at(self.start, torch.as_tensor(intermediate_result.x)), value))
        self.values.append(value)
        self.bar.update(said=f"log evidence {value:.6g} nats")
        if len(self.values) > LAST and value - self.values[-1 - LAST] < self.gain:
            raise StopIteration

    def highest(self) -> P:
        """The posterior of the highest evidence met, with the steps."""
        if self.values[-1] < self.best:  # the line search passed over it
            self.trace.append(chosen(self.process, self.best))
        return replace(self.process, trace=tuple(self.trace))


def value_and_gradient(process: Process | LaplaceProcess) -> tuple[float, Float[Tensor, " h"]]:
    """The log evidence, and its gradient in ``logs_of``; exact, by a dense factor and its inverse."""
    if isinstance(process, LaplaceProcess):
        return process.log_marginal(), process.gradient()
    data, basis = process.seen, process.trend(process.seen.inputs)
    c, matrix = data.outputs, KernelMatrix(process.kernel, data.inputs)
    whole = matrix.dense(process.solver.max_bytes if isinstance(process.solver, Cholesky) else DENSE)
    whole.diagonal().add_(process.noise_variance)
    try:
        inverse, solved, logdet = inverted(whole, torch.cat([data.targets, basis], 1))
    except NumericalError as error:
        raise singular(error, process.noise_variance) from None
    alpha, beta = least_squares(basis, solved[:, c:], solved[:, :c])

    def weight(i: slice, j: slice) -> Tensor:
        part = inverse[i, j] if i != j else inverse[i, j].triu() + inverse[i, j].triu(1).mT
        return 0.5 * torch.addmm(part, alpha[i], alpha[j].mT, beta=-c)

    diagonal = 0.5 * (alpha.square().sum(1) - c * inverse.diagonal())
    return process.log_density(alpha, beta, logdet), gradient_by(process, weight, diagonal)


def gradient_by(
    process: Process, weight: Callable[[slice, slice], Tensor], diagonal: Float[Tensor, " n"]
) -> Float[Tensor, " h"]:
    """``Σ_ij W_ij ∂C_ij`` and what ``repeated`` adds, in the logarithms of hyper-parameters and noise variance."""
    noise = (diagonal * process.noise_variance).double().sum()[None].cpu()
    noise += process.data.repeated(1 / process.likelihood.noise)[1]
    return torch.cat([contracted(KernelMatrix(process.kernel, process.seen.inputs), weight), noise])


def warn_of_limits(process: Process | LaplaceProcess, logs: np.ndarray, limits: list[tuple[float, float]]) -> None:
    """Warn of hyper-parameters that ended where the search does.

    Args:
        process: Whose they are.
        logs: Where they ended, as ``logs_of`` has them.
        limits: Lowest and highest value of each.
    """
    labels = labels_of(process)
    pairs = list(zip(labels, logs, limits, strict=True))
    ended = [name for name, value, (low, high) in pairs if low < high and not low + 1e-6 < value < high - 1e-6]
    flat = [name for name, value, (_, high) in pairs if "lengthscale[" in name and value >= high - 1e-6]
    if flat and len(flat) < sum("lengthscale[" in name for name in labels):  # dimensions of no use are no mistake
        logger.info("%s ended at the upper limit: the targets do not vary along them", ", ".join(flat))
        ended = [name for name in ended if name not in flat]
    if ended:
        warn(
            f"{', '.join(ended)} ended at a limit of the search, a factor {REACH:g} from the start. The data may say "
            "nothing of it: try a simpler kernel, or a start nearer to what is expected",
            ConvergenceWarning,
        )
