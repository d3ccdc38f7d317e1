"""Choosing a kernel's hyper-parameters and the noise by the evidence: exactly, or by solves that samples share."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm

from lapwing.ground.errors import ConvergenceWarning, NumericalError, check_count, check_positive, warn
from lapwing.likelihoods import Gaussian
from lapwing.linear.solvers.cholesky import Cholesky
from lapwing.methods.gp.laplace import LaplaceProcess
from lapwing.methods.gp.matrix import KernelMatrix, contracted
from lapwing.methods.gp.observations import Observations
from lapwing.methods.gp.process import Process
from lapwing.methods.gp.settings import Chosen

P = TypeVar("P", Process, LaplaceProcess)

logger = logging.getLogger(__name__)

REACH = 1e4
"""Hyper-parameters may grow and shrink by this factor from where they start, the noise by its square."""

ROUNDING = 10.0
"""The noise variance stays above so many times the rounding of the dtype, over the variance of the targets."""

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
        A step: a Cholesky factor and its inverse, ``n³`` multiplications, and ``3 n²`` numbers, in float64.

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

    def tune(self, posterior: P, progress: bool = False) -> P:
        """The posterior with the kernel and noise it chose.

        Args:
            posterior: The posterior.
            progress: Whether to show a progress bar.

        Warns:
            ConvergenceWarning: If the steps were too few, or a hyper-parameter ended at a limit.
        """
        data = posterior.data
        exact = posterior.select(torch.arange(len(data), device=data.inputs.device))
        found = climbed(exact, self.steps, self.noise, progress, floor=least_noise(data))
        if not found.done:
            warn(f"the evidence still rose after {self.steps} steps. Try a larger steps=", ConvergenceWarning)
        warn_of_limits(found)
        return replace(at(posterior, logs_of(found.process)), trace=found.process.trace)


@final
@dataclass(frozen=True, eq=False)
class Climbed(Generic[P]):
    """Where a climb of the evidence came to.

    Args:
        process: The posterior of the highest evidence met.
        logs: Where it ended, as ``logs_of`` has it.
        limits: Lowest and highest value of each.
        done: Whether it took fewer than the most steps.
    """

    process: P
    logs: np.ndarray
    limits: list[tuple[float, float]]
    done: bool


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

    def tune(self, posterior: Process, progress: bool = False) -> Process:
        """See ``Evidence.tune``; without its warnings."""
        start = logs_of(posterior)
        logs = start.clone().requires_grad_()
        adam = torch.optim.Adam([logs], lr=self.rate, betas=(0.9, 0.99))
        falling = torch.optim.lr_scheduler.ExponentialLR(adam, 0.1 ** (1 / self.steps))
        reach = torch.tensor(reaches(posterior, self.noise))
        process = posterior
        for _ in tqdm(range(self.steps), "evidence", disable=not progress, unit="step", leave=False):
            logs.grad = -estimated_gradient(process)
            adam.step()
            falling.step()
            with torch.no_grad():
                logs.clamp_(start - reach, start + reach)
            process = at(process, logs.detach())
            process = replace(process, trace=(*process.trace, chosen(process)))
        return process


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


def least_noise(data: Observations) -> float:
    """The noise variance below which rounding of the dtype would be taken for signal."""
    return ROUNDING * torch.finfo(data.inputs.dtype).eps * float(data.targets.double().square().mean())


def reaches(process: Process | LaplaceProcess, noise: bool) -> list[float]:
    """How far each logarithm may move."""
    reach, own = math.log(REACH), len(process.kernel.hyper)
    return [reach] * own + [2 * reach * noise] * (process.likelihood.noise is not None)


def climbed(
    posterior: P, steps: int, noise: bool, progress: bool, *, rtol: float = 1e-12, floor: float = 0.0
) -> Climbed[P]:
    """The highest exact evidence, by L-BFGS.

    Args:
        posterior: Where to start.
        steps: Most steps.
        noise: Whether the noise is chosen too.
        progress: Whether to show a progress bar.
        rtol: A step that gains a smaller part of the evidence is the last.
        floor: Least noise variance.
    """
    from scipy.optimize import minimize  # half a second to import

    start = logs_of(posterior)
    best: list[tuple[float, P]] = []
    trace, looked = list(posterior.trace), dict[bytes, float]()
    reach = reaches(posterior, noise)
    limits = [(float(v) - r, float(v) + r) for v, r in zip(start, reach, strict=True)]
    if noise and floor > 0 and posterior.likelihood.noise is not None:
        limits[-1] = (max(limits[-1][0], min(math.log(floor), float(start[-1]))), limits[-1][1])
    with tqdm(total=steps, desc="evidence", disable=not progress, unit="step", leave=False) as bar:

        def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
            process = at(best[0][1] if best else posterior, torch.as_tensor(x))
            try:
                value, gradient = value_and_gradient(process)
            except NumericalError:  # a step so long that K + N is singular up to rounding
                if not best:
                    raise
                return FAILED * (1 + abs(best[0][0])), np.zeros(len(x))
            if not looked:
                trace.append(chosen(process, value))
            looked[x.tobytes()] = value
            if not best or value > best[0][0]:
                best[:] = [(value, process)]
            bar.update()
            bar.set_postfix(log_marginal=f"{value:.6g}")
            return -value, -gradient.numpy()

        def accept(x: np.ndarray) -> None:
            trace.append(chosen(at(posterior, torch.as_tensor(x)), looked.get(x.tobytes())))

        options = {"maxiter": steps, "ftol": rtol, "gtol": 1e-6}
        found = minimize(
            objective, start.numpy(), jac=True, method="L-BFGS-B", bounds=limits, options=options, callback=accept
        )
    highest, process = best[0]
    if trace[-1].log_marginal != highest:  # a look that the line search passed over
        trace.append(chosen(process, highest))
    return Climbed(replace(process, trace=tuple(trace)), found.x, limits, found.status != 1)


def value_and_gradient(process: Process | LaplaceProcess) -> tuple[float, Float[Tensor, " h"]]:
    """The log evidence, and its gradient in ``logs_of``; exact, by a dense factor."""
    if isinstance(process, LaplaceProcess):
        return process.log_marginal(), process.gradient()
    solver = process.solver if isinstance(process.solver, Cholesky) else Cholesky()
    process = process.with_solver(solver)
    alpha, c = process.representers[0], process.data.outputs
    inverse = solver.held(process.problem).solve(torch.eye(len(alpha)).to(alpha))
    weight = 0.5 * (alpha @ alpha.mT - c * inverse)
    return float(process.log_marginal()), gradient_by(process, lambda i, j: weight[i, j], weight.diagonal())


def estimated_gradient(process: Process) -> Float[Tensor, " h"]:
    """The gradient in ``logs_of`` from the solves of the posterior's own draws, whose covariance is ``C⁻¹``."""
    drawn = process.functions.solution.value / process.settings.samples**0.5
    alpha = process.representers[0]

    def weight(i: slice, j: slice) -> Tensor:
        return 0.5 * (alpha[i] @ alpha[j].mT - drawn[i] @ drawn[j].mT)

    return gradient_by(process, weight, 0.5 * (alpha.square().sum(1) - drawn.square().sum(1)))


def gradient_by(
    process: Process, weight: Callable[[slice, slice], Tensor], diagonal: Float[Tensor, " n"]
) -> Float[Tensor, " h"]:
    """``Σ_ij W_ij ∂C_ij`` in the logarithms of the hyper-parameters and of the noise variance."""
    matrix = process.problem.curvature
    assert isinstance(matrix, KernelMatrix)
    return torch.cat([contracted(matrix, weight), (diagonal * process.noise).double().sum()[None].cpu()])


def warn_of_limits(found: Climbed[P]) -> None:
    """Warn of hyper-parameters that ended where the search does."""
    labels = labels_of(found.process)
    pairs = list(zip(labels, found.logs, found.limits, strict=True))
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
