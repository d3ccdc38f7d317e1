"""The expectation: the mode of the tangent model, and the effective dimension of its posterior, at some precisions."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ConvergenceWarning, UnsupportedError, warn
from lapwing.ground.results import Solution
from lapwing.linalg import Diagonal
from lapwing.linear.evidence import LogEvidence
from lapwing.linear.perturbation import Perturbation
from lapwing.linear.preconditioners.base import GivenCurvature
from lapwing.linear.problem import Problem
from lapwing.linear.solvers import CG, Solver
from lapwing.linear.tangent import Mode, Tangent, Target
from lapwing.posteriors import LinearSystem, Posterior, Step
from lapwing.posteriors.effective_dimension import Dimensions, Estimator, by_draws, output_squares
from lapwing.tuning.em.state import State
from lapwing.tuning.evidence import at_mode, check_definite
from lapwing.tuning.method import LinearPosterior, Q
from lapwing.tuning.result import hyperparameters_of, step_of, with_hyperparameters

logger = logging.getLogger(__name__)


def warn_unless_found(mode: Mode, solver: Solver) -> None:
    """Warn where a search for a mode did not end at it; Newton's steps may end where rounding lets them go no further.

    Args:
        mode: What was found.
        solver: What found it.
    """
    if mode.converged or (mode.stopped == "stagnated" and not solver.by_mini_batches):
        return
    cure = solver.cure if solver.by_mini_batches else "Validation(data), or a stronger prior to start from"
    warn(
        f"the last mode of the linear model has a relative gradient of {mode.gradient:.1e} after {mode.iterations} "
        f"steps, above its tolerance: it is at most so far from the mode, relatively. Try {cure}",
        ConvergenceWarning,
    )


@final
@dataclass(frozen=True, eq=False)
class Expected:
    """What expectation says at some prior and noise precision.

    Args:
        state: They, and where to go on from.
        mode: The mode of the tangent model.
        norms: ``|w*_g|²`` of each group, every weight times its precision relative to the group's.
        dimensions: Effective dimension of each group.
        evidence: The evidence at w*, where it is exact.
        drawn: How well the draws were solved for, where there are any; they themselves are in the state.
    """

    state: State
    mode: Mode
    norms: Float[Tensor, " g"]
    dimensions: Dimensions
    evidence: LogEvidence | None = None
    drawn: Solution | None = None

    @property
    def gamma(self) -> float:
        """Effective dimension: directions the data determined."""
        return float(self.dimensions.groups.sum())

    def step(self, posterior: Posterior | LinearPosterior) -> Step:
        """What it leaves in the trace of a posterior, but for what was maximised."""
        return replace(
            step_of(posterior, self.state.hyperparameters, None, self.dimensions.total),
            effective_dimension_error=self.dimensions.error or None,
            mode_norms=tuple(self.norms.tolist()),
            mode_nll=self.mode.nll,
        )


@final
@dataclass(frozen=True, eq=False)
class Expectation(Generic[Q]):
    """The expectation of a posterior: exact where its evidence is, by draws otherwise.

    Args:
        posterior: The posterior, at the precisions it starts from.
        target: Which tangent model.
        solver: What finds the mode and the draws; ``None`` for the posterior's own, or ``CG`` with its curvature as a
            preconditioner.
        samples: Draws.
        estimator: How the effective dimension comes from them.
        rtol: Relative gradient at which a mode is found, and error of draws; by mini-batches it is the solver's.
        seed: Of the noise of draws that are not the posterior's.

    Raises:
        NumericalError: If the curvature is indefinite.
        UnsupportedError: If the posterior has neither an exact evidence nor a solver.
    """

    posterior: Q
    target: Target
    solver: Solver | None
    samples: int
    estimator: Estimator
    rtol: float
    seed: int

    def __post_init__(self) -> None:
        evidence = self.posterior.evidence
        if evidence is not None:
            check_definite(evidence)
        elif self.posterior.system is None:
            raise UnsupportedError(
                "a posterior whose evidence is exact, or one that solves with its precision",
                f"a {type(self.posterior).__name__}",
                "LowRank(...), KFAC(), MatrixFree() or Sampled()",
            )

    @cached_property
    def tangent(self) -> Tangent:
        """The tangent model of the posterior; it shares with the solves, where there are any, what they keep.

        Raises:
            UnsupportedError: If the posterior has no training data.
        """
        system = self.posterior.system
        model = None if system is None else system.problem.model
        return Tangent(self.posterior.training if model is None else model, self.target)

    @cached_property
    def solver_used(self) -> Solver:
        """What finds the mode and the draws; a posterior that stores its curvature has it as a preconditioner."""
        if self.solver is not None:
            return self.solver
        if self.posterior.system is not None:
            return self.posterior.system.solver
        curvature = self.posterior.stored_curvature
        return CG(preconditioner=None if curvature is None else GivenCurvature(curvature))

    def first(self) -> State:
        """The state before the first expectation; draws of a sampled posterior have the noise of its own, first.

        Cost:
            By draws, a product with a root of G.
        """
        start = hyperparameters_of(self.posterior)
        state = State(start.precisions, start.scale)
        system = self.posterior.system
        if system is None:
            return state
        noise = self._noise(system.problem)
        return replace(state, noise=noise, draws=noise.prior)

    def _noise(self, problem: Problem) -> Perturbation:
        """The noise of the draws: the posterior's own first, and fresh noise for what it lacks."""
        parts = list[Perturbation]()
        own = self.posterior.draw_noise
        if own is not None:
            parts.append(own.head(self.samples))
        lacking = self.samples - sum(part.prior.shape[1] for part in parts)
        with torch.no_grad():
            if lacking:
                generator = torch.Generator().manual_seed(self.seed)
                parts.append(Perturbation.drawn(problem, lacking, generator=generator))
            return Perturbation.joined(parts)

    def check(self, state: State) -> None:
        """Refuse a state that this expectation cannot have left; see ``State.check``."""
        samples = None if self.posterior.system is None else self.samples
        state.check(self.posterior.prior_precisions, self.tangent.training.weights, samples)

    def prepare(self) -> None:
        """Make what solves share: the same wherever a run goes on, so that the same numbers follow.

        That is the preconditioner, at the precisions the run starts from, and what products keep of the data, without
        which mini-batches come in the order of the data the first time, and shuffled from then on.
        """
        solver = self.solver_used
        posterior = self.posterior
        model = self.tangent.training
        prior = posterior.prior.operator(model.layout, model.weights)
        problem = self.tangent.problem(model.weights, prior, posterior.noise_scale)
        system = posterior.system
        columns = 1 if system is None else self.samples
        with torch.no_grad():
            if system is not None:
                solver.preconditioner_of(system.problem)
                problem.curvature_cache.update(system.problem.curvature_cache)
            solver.preconditioner_of(problem)
            for _ in model.visit(columns):
                pass

    def expect(self, state: State, progress: bool | None = None, rtol: float | None = None) -> Expected:
        """What expectation says at the precisions of a state.

            w* = argmin s Σ_i ℓ(y_i, h(w, x_i)) + ½ |w|²_A,     γ_g = n_g - α_g tr(Λ⁻¹)_g    (equations 2.45 and 6.11)

        Args:
            state: The precisions, and where to start from.
            progress: Whether to show progress bars; ``None`` for after two seconds, in a terminal or notebook.
            rtol: Relative gradient and error of draws now; ``None`` for those of the expectation.

        Cost:
            A mode. By draws, a block solve started from the last draws, and a product with G.
        """
        rtol = rtol or self.rtol
        mode = self._mode(state, rtol, progress)
        norms = self.posterior.prior.square_norms(mode.weights, self.tangent.training.layout)
        state = replace(state, weights=mode.weights)
        evidence = self.posterior.evidence
        if evidence is not None:
            there = at_mode(evidence, norms, nll=mode.nll, misfit=mode.misfit)
            gamma = there.effective_dimensions(state.precisions, state.scale)
            return Expected(state, mode, norms, Dimensions.exact(gamma), there)
        system = self.posterior.system
        assert system is not None
        return self._by_draws(system, state, mode, norms, rtol)

    def _mode(self, state: State, rtol: float, progress: bool | None) -> Mode:
        """The mode w* at the precisions of a state."""
        solver = self.solver_used
        mode = self.tangent.mode(
            self.prior(state),
            float(state.scale),
            solver=solver,
            initial=self._start(state),
            rtol=None if solver.by_mini_batches else rtol,
            progress=progress,
        )
        logger.debug("mode: gradient %.2g after %d products", mode.gradient, mode.matvecs)
        return mode

    def _start(self, state: State) -> Float[Tensor, " d"] | None:
        """Where to look for the mode: at the last one, or where the posterior has it at once."""
        posterior = self.posterior
        if self.target == "affine" and posterior.fitted.noise:
            step = with_hyperparameters(posterior, state.hyperparameters).mode_step()
            if step is not None:
                return self.tangent.training.weights + step
        return state.weights

    def _by_draws(
        self, system: LinearSystem, state: State, mode: Mode, norms: Float[Tensor, " g"], rtol: float
    ) -> Expected:
        """Draws ``ζ ~ N(0, Λ⁻¹)`` with the noise of a state, started from its draws, and the dimensions they tell."""
        assert state.noise is not None and state.draws is not None
        prior = self.prior(state)
        scale = float(state.scale)
        problem = system.problem.with_prior(prior, scale)
        with torch.no_grad():
            b = state.noise.right_hand_side(problem)
            solver = self._solver_of_draws(problem, b, rtol)
            drawn = solver.resumed(problem, b, prior.inverse_root() @ state.draws)
        draws = drawn.value
        group, groups = self.posterior.prior.groups(self.tangent.training.layout)

        def squares() -> Float[Tensor, "g k"]:
            return scale * output_squares(problem, draws, group, groups)

        dimensions = by_draws(draws, prior.values, group, squares, self.estimator)
        state = replace(state, draws=prior.root() @ draws)
        largest = draws.abs().amax(0, keepdim=True)  # enough to tell which are 0
        return Expected(state, mode, norms, dimensions, drawn=replace(drawn, value=largest))

    def _solver_of_draws(self, problem: Problem, b: Float[Tensor, "d k"], rtol: float) -> Solver:
        """What solves for draws: where it was given no tolerance only as exactly as a step needs.

        In the units of the prior a draw has a length of at most about √d, and is off by at most its residual over the
        root of the smallest precision.
        """
        longest = (b.numel() * float(problem.prior.values.min())) ** 0.5
        return self.solver_used.loosely(rtol * longest / float(b.norm()), b.dtype)

    def prior(self, state: State) -> Diagonal:
        """The prior precision A at a state."""
        model = self.tangent.training
        return self.posterior.prior.with_precisions(state.precisions.cpu()).operator(model.layout, model.weights)
