"""How a Gaussian process is solved and sampled, whatever its kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from lapwing.gp.trend import Mean
from lapwing.ground.errors import check_count, check_kind, check_option
from lapwing.linear.preconditioners import PivotedCholesky
from lapwing.linear.solvers import CG, SDD, Cholesky, Solver

EXACT = 16_384
"""Distinct inputs up to which ``"auto"`` takes Cholesky's method."""

MEDIUM = 100_000
"""Distinct inputs up to which it takes conjugate gradients."""

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
        return torch.float64 if solver.exact or self.dtype is None else self.dtype

    def solver_for(self, observations: int) -> Solver:
        """What solves for so many observations.

        Args:
            observations: n.
        """
        solver = self.solver
        if not isinstance(solver, Solver):
            if observations <= EXACT:
                solver = Cholesky()
            elif observations <= MEDIUM:
                solver = CG(rtol=1e-2, preconditioner=PivotedCholesky(500))
            else:
                solver = SDD()
        return solver if self.progress is None else solver.with_progress(self.progress)
