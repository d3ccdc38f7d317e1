"""How a Gaussian process is solved and sampled, whatever its kernel, and what is said of a solve that failed."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal, final, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ConvergenceWarning, NumericalError, check_count, check_kind, check_option, warn
from lapwing.ground.results import Solution
from lapwing.linear.preconditioners import PivotedCholesky
from lapwing.linear.solvers import CG, SDD, Cholesky, Solver
from lapwing.methods.gp.trend import Mean

EXACT, MEDIUM = 16_384, 100_000
"""Distinct inputs up to which ``"auto"`` takes Cholesky's method, and up to which conjugate gradients."""

FEATURES = 2_000
"""Random features of few functions."""

PER_DRAW = 100
"""Features for each of many functions: they leave less out of covariances than the error that so few draws have."""

ENTRIES = 2**27
"""Entries of features at the data up to which there are more than ``FEATURES``."""

WEIGHTS = 2**26
"""Weights of all functions up to which there are."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The choices of a Gaussian process that change no posterior but by how exact it is, and its mean before data.

    Args:
        mean: h: ``"zero"``, an unknown ``"constant"``, or an unknown plane, ``"linear"``.
        solver: What solves with ``K + 1/ρ``: ``Cholesky()``, ``CG()``, ``SDD()``, ``AlternatingProjections()``;
            ``"auto"`` takes Cholesky up to 16,384 distinct inputs, preconditioned conjugate gradients up to 100,000,
            and stochastic dual descent beyond.
        samples: Functions from which variances are read where the solver is not exact.
        features: Random features of a function drawn from the prior, shared by all that are drawn together; ``None``
            for 100 a function, as far as they have no more than 2²⁷ entries at the data and 2²⁶ weights, and 2,000 at
            least.
        dtype: ``torch.float32`` for solves in single precision: half of the memory and time, and no noise variance much
            below 1e-6 of the targets' variance. ``None`` for float64, which is what ``Cholesky()`` takes in any case.
        progress: Whether solves show a bar with their residual; ``None`` for after two seconds, in a terminal or
            notebook.
        seed: Of the functions and the noise.

    Raises:
        ConfigError: If an option makes no sense.
    """

    mean: Mean = "constant"
    solver: Solver | Literal["auto"] = "auto"
    samples: int = 64
    features: int | None = None
    dtype: torch.dtype | None = None
    progress: bool | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_option("mean", self.mean, get_args(Mean))
        if self.solver != "auto":
            check_kind("solver", self.solver, (Solver,), "CG(), or 'auto'")
        check_count("samples", self.samples, 2)
        if self.features is not None:
            check_count("features", self.features)
        check_option("dtype", self.dtype, (None, torch.float32, torch.float64))
        check_count("seed", self.seed, 0)

    def features_for(self, observations: int, samples: int, outputs: int = 1) -> int:
        """Random features of functions.

        Args:
            observations: n.
            samples: Functions that are drawn together.
            outputs: c.
        """
        if self.features is not None:
            return self.features
        return max(FEATURES, min(PER_DRAW * samples, ENTRIES // observations, WEIGHTS // (samples * outputs)))

    def solved_in(self, solver: Solver) -> torch.dtype:
        """The dtype of solves.

        Args:
            solver: What solves.
        """
        return torch.float64 if isinstance(solver, Cholesky) or self.dtype is None else self.dtype

    def solver_for(self, observations: int) -> Solver:
        """What solves for so many observations.

        Args:
            observations: n.
        """
        solver = self.solver
        if not isinstance(solver, Solver):
            many = CG(rtol=1e-2, preconditioner=PivotedCholesky(500)) if observations <= MEDIUM else SDD()
            solver = Cholesky() if observations <= EXACT else many
        if self.progress is not None and any(field.name == "progress" for field in fields(solver)):
            return replace(solver, progress=self.progress)  # type: ignore[call-arg]
        return solver


DRAWN = 0.5
"""Part of the noise's standard deviation that drawn functions may be off by: intervals are then a tenth too wide."""


@final
@dataclass(frozen=True)
class Chosen:
    """Hyper-parameters after a step of tuning.

    Args:
        values: By name, the noise variance last.
        log_marginal: Log evidence with them of the observations that were looked at, nats; ``None`` where the step did
            without.
    """

    values: dict[str, float]
    log_marginal: float | None = None


def singular(error: NumericalError, noise: Float[Tensor, " n"]) -> NumericalError:
    """What a solve that failed says of the data; of a descent that diverged, what it says itself.

    Args:
        error: Its error.
        noise: Noise variance at each input.
    """
    if "definite" not in error.expected:
        return error
    return NumericalError(
        f"a kernel, and noise that keeps K + N away from singular ({error.expected})",
        f"a smallest noise variance of {float(noise.min()):.1e} ({error.got})",
        "a smaller precision of the likelihood, fewer inputs that are nearly alike, or for Custom a function that is "
        "symmetric and positive definite",
    )


def check_solved(solution: Solution, solver: Solver, dtype: torch.dtype) -> None:
    """Warn of a solve that ended early.

    Args:
        solution: What it found.
        solver: What solved.
        dtype: Of the solve.
    """
    if solution.converged:
        return
    ended, cure = "ended", solver.cure
    if solution.stopped == "interrupted":
        ended, cure = "was interrupted", "with_solver(solver), which goes on from here"
    elif solution.stopped == "seconds":
        ended, cure = "ran out of seconds=", "with_solver(solver), which goes on from here"
    elif solution.stopped == "stagnated" and dtype == torch.float32:
        ended, cure = "ended, for float32 resolves no more,", "dtype=torch.float64, more noise, or fewer rows"
    elif solution.stopped == "stagnated":
        ended, cure = "ended, for float64 resolves no more,", "more noise, or fewer rows that are nearly alike"
    warn(
        f"a solve {ended} after {solution.iterations} iterations with {solution.distance}. Try {cure}",
        ConvergenceWarning,
    )


def check_drawn(
    error: Float[Tensor, " k"], values: Float[Tensor, "n k"], noise: Float[Tensor, " n"], solver: Solver
) -> None:
    """Warn where drawn functions may be off by much of the noise: variances are read from them, and hold what is off.

    Args:
        error: Of their solves, see ``Solution``.
        values: What was solved for.
        noise: Noise variance at each input.
        solver: What solved.

    Warns:
        ConvergenceWarning: If that is more than ``DRAWN`` of the noise's standard deviation.
    """
    scale = (values / noise.sqrt()[:, None]).double().square().mean(0).sqrt()
    off = float((error * scale).max()) if len(error) else 0.0
    if off > DRAWN:
        kind, rtol = type(solver).__name__, getattr(solver, "rtol", None)
        cure = f"{kind}(rtol={rtol * DRAWN / off:.1g})" if isinstance(rtol, float) else "a smaller rtol="
        warn(
            f"drawn functions may be off by {off:.2g} standard deviations of the noise, root mean square, and then "
            f"standard deviations that are read from them are too large. Try solver={cure}, or Cholesky()",
            ConvergenceWarning,
        )
