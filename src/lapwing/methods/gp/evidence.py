"""Choosing a kernel's hyper-parameters and the noise by the exact evidence."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, final

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lapwing.ground.errors import ConvergenceWarning, NumericalError, check_count, warn
from lapwing.ground.progress import Bar
from lapwing.ground.results import Stopped
from lapwing.linalg.cholesky import inverted
from lapwing.linear.solvers.cholesky import Cholesky
from lapwing.methods.gp.groups import OutputGroup, each_of
from lapwing.methods.gp.kernels import Kernel
from lapwing.methods.gp.laplace import LaplaceProcess
from lapwing.methods.gp.matrix import DENSE, contracted
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
        found, stopped = climbed(exact, self.steps, self.noise, progress, floor=LeastNoise.of(posterior))
        if stopped == "iterations":
            warn(f"the evidence still rose after {self.steps} steps. Try a larger steps=", ConvergenceWarning)
        return replace(at(posterior, logs_of(found)), trace=found.trace)


def logs_of(process: Process | LaplaceProcess) -> Float[Tensor, " h"]:
    """Logarithms of the kernels' hyper-parameters, and last of the noise variances where there are any."""
    noises = [-math.log(precision) for precision in precisions_of(process)]
    kernels = [kernel.hyper for kernel in kernels_of(process)]
    return torch.cat([*kernels, torch.tensor(noises, dtype=torch.float64)])


def labels_of(process: Process | LaplaceProcess) -> list[str]:
    """What each entry of ``logs_of`` is; where there is one an output, with the number of the output."""
    kernels, precisions = kernels_of(process), precisions_of(process)
    labels = kernels[0].labels()
    if isinstance(process.kernel, tuple):
        labels = [f"kernel[{i}].{label}" for i, kernel in enumerate(kernels) for label in kernel.labels()]
    if len(precisions) > 1:
        return labels + [f"noise variance[{i}]" for i in range(len(precisions))]
    return labels + ["noise variance"] * len(precisions)


def kernels_of(process: Process | LaplaceProcess) -> tuple[Kernel, ...]:
    """The kernels that are chosen: one for all outputs, or one an output."""
    return each_of(process.kernel)


def precisions_of(process: Process | LaplaceProcess) -> tuple[float, ...]:
    """The noise precisions that are chosen: none, one for all outputs, or one an output."""
    if isinstance(process, LaplaceProcess):
        return ()
    known = process.likelihood.precision
    return known if isinstance(known, tuple) else (known,)


def chosen(process: Process | LaplaceProcess, log_marginal: float | None = None) -> Chosen:
    """What a step of tuning leaves in the trace."""
    return Chosen(dict(zip(labels_of(process), logs_of(process).exp().tolist(), strict=True)), log_marginal)


def at(process: P, logs: Float[Tensor, " h"]) -> P:
    """The posterior with other hyper-parameters and noise, as ``logs_of`` has them."""
    if isinstance(process, LaplaceProcess):
        return process.with_choices(process.kernel.with_hyper(logs))
    before = kernels_of(process)
    sizes = [len(kernel.hyper) for kernel in before]
    *parts, noises = logs.split([*sizes, len(logs) - sum(sizes)])
    kernels = tuple(kernel.with_hyper(part) for kernel, part in zip(before, parts, strict=True))
    precisions = tuple((-noises).exp().tolist())
    several = isinstance(process.likelihood.precision, tuple)
    return process.with_choices(
        kernels if isinstance(process.kernel, tuple) else kernels[0],
        replace(process.likelihood, precision=precisions if several else precisions[0]),
    )


@final
@dataclass(frozen=True, eq=False)
class LeastNoise:
    """The noise variances below which rounding of solves would be taken for signal.

    Args:
        variances: One for each noise variance that is chosen.
        dtype: Of the solves.
    """

    variances: Float[Tensor, " k"]
    dtype: torch.dtype

    @classmethod
    def of(cls, process: Process | LaplaceProcess) -> LeastNoise:
        """Those of a process, from what its mean leaves of the targets."""
        if isinstance(process, LaplaceProcess):
            return cls(torch.zeros(0, dtype=torch.float64), torch.float64)
        basis = process.trend(process.data.inputs.double())
        rest, _ = least_squares(basis, basis, process.data.targets.double())
        left = ROUNDING * torch.finfo(process.dtype).eps * rest.square().mean(0).cpu()
        several = isinstance(process.likelihood.precision, tuple)
        return cls(left if several else left.mean()[None], process.dtype)


def limits_of(process: Process | LaplaceProcess, noise: bool) -> tuple[Float[Tensor, " h"], Float[Tensor, " h"]]:
    """The lowest and the highest that each logarithm may become."""
    logs = logs_of(process)
    reach = torch.full_like(logs, math.log(REACH))
    reach[len(logs) - len(precisions_of(process)) :] *= 2 * noise
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

    first, (lowest, highest) = logs_of(start), limits_of(start, noise)
    least = floor.variances.log()
    if noise and len(least):
        own = slice(len(lowest) - len(least), None)
        lowest[own] = torch.maximum(lowest[own], torch.minimum(least, first[own]))
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
    warn_of_limits(process, end, limits, floor)
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
    targets = process.seen.targets.to(process.dtype)
    basis = process.trend(process.seen.inputs.to(process.dtype))
    alpha = torch.empty_like(targets)
    beta = targets.new_empty(basis.shape[1], targets.shape[1])
    logdets = list[float]()
    parts = list[tuple[Tensor, Tensor]]()
    for group in process.groups:
        outputs = list(group.outputs)
        whole = group.matrix.dense(room_of(process))
        whole.diagonal().add_(group.noise)
        try:
            inverse, solved, logdet = inverted(whole, torch.cat([targets[:, outputs], basis], 1))
        except NumericalError as error:
            raise singular(error, group.noise) from None
        c = len(outputs)
        own, slopes = least_squares(basis, solved[:, c:], solved[:, :c])
        diagonal = 0.5 * (own.square().sum(1) - c * inverse.diagonal())
        parts.append(gradient_by(group, _evidence_weight(inverse, own), diagonal))
        alpha[:, outputs], beta[:, outputs] = own, slopes
        logdets.append(logdet)
    return process.log_density(alpha, beta, logdets), joined_gradient(process, parts)


def room_of(process: Process) -> int:
    """Bytes that a kernel matrix may take."""
    return process.solver.max_bytes if isinstance(process.solver, Cholesky) else DENSE


def _evidence_weight(
    inverse: Float[Tensor, "n n"], alpha: Float[Tensor, "n c"]
) -> Callable[[slice, slice], Float[Tensor, "a b"]]:
    """``½ (α αᵀ - c C⁻¹)`` a tile at a time, of an inverse whose upper half is right."""

    def weight(i: slice, j: slice) -> Tensor:
        part = inverse[i, j] if i != j else inverse[i, j].triu() + inverse[i, j].triu(1).mT
        return 0.5 * torch.addmm(part, alpha[i], alpha[j].mT, beta=-alpha.shape[1])

    return weight


def gradient_by(
    group: OutputGroup, weight: Callable[[slice, slice], Tensor], diagonal: Float[Tensor, " n"]
) -> tuple[Float[Tensor, " h"], Float[Tensor, ""]]:
    """``Σ_ij W_ij ∂C_ij`` in the logarithms of the hyper-parameters of a group's kernel, and of its noise variance.

    Args:
        group: Outputs with their C.
        weight: The entries of W at some rows and columns, on or above the diagonal.
        diagonal: Those on it.
    """
    return contracted(group.matrix, weight), (diagonal * group.noise).double().sum().cpu()


def joined_gradient(process: Process, parts: Sequence[tuple[Tensor, Tensor]]) -> Float[Tensor, " h"]:
    """The gradient in ``logs_of`` from those of the groups, and what ``repeated`` adds."""
    repeats = process.data.repeated(process.noises)[1].cpu()
    kernels = [kernel for kernel, _ in parts]
    noises = torch.stack(
        [noise + repeats[list(group.outputs)].sum() for group, (_, noise) in zip(process.groups, parts, strict=True)]
    )
    kernel = torch.cat(kernels) if isinstance(process.kernel, tuple) else torch.stack(kernels).sum(0)
    several = isinstance(process.likelihood.precision, tuple)
    return torch.cat([kernel, noises if several else noises.sum()[None]])


def warn_of_limits(
    process: Process | LaplaceProcess,
    logs: np.ndarray,
    limits: list[tuple[float, float]],
    floor: LeastNoise | None = None,
) -> None:
    """Warn of hyper-parameters that ended where the search does.

    Args:
        process: Whose they are.
        logs: Where they ended, as ``logs_of`` has them.
        limits: Lowest and highest value of each.
        floor: Least noise variances; ``None`` where rounding sets no limit.
    """
    labels = labels_of(process)
    pairs = list(zip(labels, logs, limits, strict=True))
    ended = [name for name, value, (low, high) in pairs if low < high and not low + 1e-6 < value < high - 1e-6]
    flat = [name for name, value, (_, high) in pairs if "lengthscale[" in name and value >= high - 1e-6]
    if flat and len(flat) < sum("lengthscale[" in name for name in labels):  # dimensions of no use are no mistake
        logger.info("%s ended at the upper limit: the targets do not vary along them", ", ".join(flat))
        ended = [name for name in ended if name not in flat]
    if floor is not None:
        least = floor.variances.log().tolist()
        noises = zip(labels[len(labels) - len(least) :], logs[len(logs) - len(least) :], least, strict=True)
        rounded = [name for name, value, low in noises if name in ended and value <= low + 1e-6]
        ended = [name for name in ended if name not in rounded]
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
