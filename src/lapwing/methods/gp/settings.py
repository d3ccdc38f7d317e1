"""How a Gaussian process is solved and sampled, whatever its kernel, and what is said of a solve that failed."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal, final, get_args

from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ConvergenceWarning, NumericalError, check_count, check_kind, check_option, warn
from lapwing.ground.results import Solution
from lapwing.linear.preconditioners import PivotedCholesky
from lapwing.linear.solvers import CG, SDD, Cholesky, Solver
from lapwing.methods.gp.trend import Mean

EXACT, MEDIUM = 16_384, 100_000
"""Distinct inputs up to which ``"auto"`` takes Cholesky's method, and up to which conjugate gradients."""

PRECISE = 5_000
"""Observations up to which tables and arrays are read in float64."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The choices of a Gaussian process that change no posterior but by how exact it is, and its mean before data.

    Args:
        mean: h: ``"zero"``, an unknown ``"constant"``, or an unknown plane, ``"linear"``.
        solver: What solves with ``K + 1/ρ``: ``Cholesky()``, ``CG()``, ``SDD()``, ``AlternatingProjections()``;
            ``"auto"`` takes Cholesky up to 16,384 distinct inputs, preconditioned conjugate gradients up to 100,000,
            and stochastic dual descent beyond.
        samples: Functions from which variances are read where the solver is not exact.
        features: Random features of a function drawn from the prior.
        progress: Whether solves show a bar with their residual; ``None`` for after two seconds, in a terminal or
            notebook.
        seed: Of the functions and the noise.

    Raises:
        ConfigError: If an option makes no sense.
    """

    mean: Mean = "constant"
    solver: Solver | Literal["auto"] = "auto"
    samples: int = 64
    features: int = 2000
    progress: bool | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_option("mean", self.mean, get_args(Mean))
        if self.solver != "auto":
            check_kind("solver", self.solver, (Solver,), "CG(), or 'auto'")
        check_count("samples", self.samples, 2)
        check_count("features", self.features)
        check_count("seed", self.seed, 0)

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
        "a smaller precision of the likelihood, fewer inputs that are nearly alike, float64, or for Custom a function "
        "that is symmetric and positive definite",
    )


def check_solved(solution: Solution, cure: str) -> None:
    """Warn of a solve that ended early.

    Args:
        solution: What it found.
        cure: What to try where it was not interrupted.
    """
    if solution.converged:
        return
    stopped = solution.stopped == "interrupted"
    cure = "with_solver(solver), which goes on from here" if stopped else cure
    warn(
        f"a solve {'was interrupted' if stopped else 'ended'} after {solution.iterations} iterations with a "
        f"relative residual of {float(solution.residual.max()):.1e}. Try {cure}",
        ConvergenceWarning,
    )
