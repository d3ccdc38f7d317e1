"""Draws from N(0, Λ⁻¹): a solve against noise, or a matrix function."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import ClassVar, final, get_args

import torch

from lapwing.ground import probes
from lapwing.ground.errors import ConfigError, check_count, check_fraction, check_kind, check_option
from lapwing.ground.results import Solution
from lapwing.linalg.contour import contour_inverse_root, spectral_interval
from lapwing.linalg.matrix_functions import apply_function
from lapwing.linalg.shifted import Method
from lapwing.linear.perturbation import Perturbation
from lapwing.linear.preconditioners.base import Preconditioner, approximation
from lapwing.linear.problem import Problem
from lapwing.linear.solvers.base import Solver


@dataclass(frozen=True)
class Root(abc.ABC):
    """A way to draw from N(0, Λ⁻¹)."""

    cure: ClassVar[str] = "more iterations"
    """What to try where a draw stops short of its tolerance."""

    def cure_with(self, solver: Solver) -> str:
        """What to try where a draw with a solver stops short of its tolerance."""
        return self.cure

    @abc.abstractmethod
    def draw(
        self, problem: Problem, solver: Solver, samples: int, *, generator: torch.Generator | None = None
    ) -> Solution:
        """Draws, one a column.

        Args:
            problem: The problem.
            solver: What solves with Λ, where a solve is needed.
            samples: Draws.
            generator: Source of randomness.

        Returns:
            Draws ``[d, samples]`` with what they cost.
        """


@final
@dataclass(frozen=True)
class Perturb(Root):
    """Perturb and solve: ``δ = Λ⁻¹ (√s R ε₁ + A^½ ε₂)``, whose covariance is ``Λ⁻¹ Λ Λ⁻¹ = Λ⁻¹``.

    One product with R and one solve, for all draws together (Papandreou & Yuille 2010).
    """

    def draw(
        self, problem: Problem, solver: Solver, samples: int, *, generator: torch.Generator | None = None
    ) -> Solution:
        """See ``Root.draw``."""
        noise = Perturbation.drawn(problem, samples, generator=generator)
        return solver.solve(problem, noise.right_hand_side(problem))

    def cure_with(self, solver: Solver) -> str:
        """See ``Root.cure_with``; that of the solver."""
        return solver.cure


@final
@dataclass(frozen=True)
class Contour(Root):
    """Contour-integral quadrature: ``δ = Σ_q w_q (Λ + t_q P)⁻¹ P^½ ε`` (Hale et al. 2008; Pleiss et al. 2020).

    Args:
        points: Quadrature points Q.
        rtol: Relative residual of the shifted systems.
        max_iterations: Most products with a block.
        preconditioner: A recipe for P; ``None`` for the identity.
        interval: Smallest and largest eigenvalue of ``P⁻¹ Λ``; ``None`` to estimate them. Without a preconditioner the
            smallest is bounded by the smallest prior precision.
        shifts: What solves the shifted systems: ``"cg"``, or ``"minres"`` as in Pleiss et al.

    Raises:
        ConfigError: If a number is not positive.

    Cost:
        One product with Λ an iteration whatever Q; memory ``(Q + 7) d`` numbers a draw, twice that with MINRES.
    """

    cure = "Contour(preconditioner=LowRank(100)), or a larger max_iterations"

    points: int = 10
    rtol: float = 1e-6
    max_iterations: int = 1000
    preconditioner: Preconditioner | None = None
    interval: tuple[float, float] | None = None
    shifts: Method = "cg"

    def __post_init__(self) -> None:
        check_option("shifts", self.shifts, get_args(Method))
        check_count("points", self.points)
        check_count("max_iterations", self.max_iterations)
        check_fraction("rtol", self.rtol, "Contour(rtol=1e-6)")
        if self.interval is not None and not 0 < self.interval[0] <= self.interval[1]:
            raise ConfigError("an interval 0 < smallest <= largest", f"{self.interval}", "interval=None to estimate it")
        if self.preconditioner is not None:
            check_kind("preconditioner=", self.preconditioner, (Preconditioner,), "PivotedCholesky(100)")

    def draw(
        self, problem: Problem, solver: Solver, samples: int, *, generator: torch.Generator | None = None
    ) -> Solution:
        """See ``Root.draw``; the solver has no part in it."""
        preconditioner = None
        size = problem.size
        if self.preconditioner is not None:
            preconditioner = approximation(problem, self.preconditioner)
            size = preconditioner.root().shape[1]
        noise = probes.gaussian((size, samples), like=problem.prior.values, generator=generator)
        interval = self.interval
        if interval is None:
            smallest, largest = spectral_interval(problem.precision, preconditioner=preconditioner, generator=generator)
            least = 0.0 if preconditioner is not None else float(problem.prior.values.min())
            interval = (max(smallest, least), largest)
        return contour_inverse_root(
            problem.precision,
            noise,
            points=self.points,
            interval=interval,
            rtol=self.rtol,
            max_iterations=self.max_iterations,
            preconditioner=preconditioner,
            method=self.shifts,
        )


@final
@dataclass(frozen=True)
class Lanczos(Root):
    """Lanczos: ``δ = |ε| V T^-½ e₁`` from the Krylov space of each ε (Chow & Saad 2014).

    Args:
        steps: Most Lanczos steps, one product each.
        rtol: Relative change of the draw at which it is done.

    Raises:
        ConfigError: If a number is not positive.

    Cost:
        One product with Λ a step; memory ``steps d`` float64 numbers a draw, of as many draws at a time as fit 2 GiB.
    """

    cure = "Lanczos with more steps, or Perturb()"

    steps: int = 200
    rtol: float = 1e-6

    def __post_init__(self) -> None:
        check_count("steps", self.steps)
        check_fraction("rtol", self.rtol, "Lanczos(rtol=1e-6)")

    def draw(
        self, problem: Problem, solver: Solver, samples: int, *, generator: torch.Generator | None = None
    ) -> Solution:
        """See ``Root.draw``; the solver has no part in it."""
        noise = probes.gaussian((problem.size, samples), like=problem.prior.values, generator=generator)
        return apply_function(problem.precision, noise, torch.rsqrt, steps=self.steps, rtol=self.rtol)
