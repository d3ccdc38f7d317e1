"""The mode of the tangent model and the effective dimension of its posterior, at some prior and noise precision."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.curvature.totals import check_same
from lapwing.ground.data import Data, Source
from lapwing.ground.errors import ConvergenceWarning, MismatchError, UnsupportedError, warn
from lapwing.ground.results import Solution
from lapwing.ground.types import Unpack
from lapwing.linalg import Diagonal
from lapwing.linear.evidence import Evidence
from lapwing.linear.preconditioners import Known
from lapwing.linear.problem import Perturbation
from lapwing.linear.solvers import CG, SGD, Solver
from lapwing.linear.tangent import Mode, Tangent, Target
from lapwing.posteriors import ExactPosterior, FunctionPosterior, Posterior, SolvedWeights, Step, WeightPosterior
from lapwing.posteriors.dimension import Dimensions, Estimator, by_draws
from lapwing.posteriors.draws import SampledPosterior
from lapwing.tuning.checkpoint import State
from lapwing.tuning.choices import P, at_mode, check_definite, chosen, step_of

logger = logging.getLogger(__name__)


def tangent_of(posterior: Posterior, target: Target = "affine") -> Tangent:
    """The tangent model of a posterior's network; it shares with the solves, where there are any, what they keep.

    Raises:
        UnsupportedError: If the posterior has no training data.
    """
    known = posterior.problem.model if isinstance(posterior, SolvedWeights) else None
    return Tangent(known or posterior.training, target)


def with_data(posterior: P, source: Source | None, unpack: Unpack | None = None) -> P:
    """The posterior with training data that were given later; itself where none were.

    Raises:
        DataError: If they are not those of the fit.
    """
    if source is None:
        return posterior
    data = Data(source, like=posterior.network.like, unpack=unpack)
    model = replace(posterior.model, source=data)
    check_same(model, posterior.totals)
    return replace(posterior, model=model)


def warn_unless_found(mode: Mode, solver: Solver) -> None:
    """Warn where a search for a mode did not end at it; Newton's steps may end where rounding lets them go no further.

    Args:
        mode: What was found.
        solver: What found it.
    """
    if mode.converged or (mode.stopped == "stagnated" and not isinstance(solver, SGD)):
        return
    cure = solver.cure if isinstance(solver, SGD) else "Validation(data), or a stronger prior to start from"
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
        precisions: Prior precision of each group.
        scale: Relative noise precision.
        mode: The mode of the tangent model.
        norms: ``|w*_g|²`` of each group, every weight times its precision relative to the group's.
        dimensions: Effective dimension of each group.
        sizes: Weights in each group.
        observations: Scalar observations; 0 where there is no noise.
        evidence: The evidence at w*, where it is exact.
    """

    precisions: Float[Tensor, " g"]
    scale: Float[Tensor, ""]
    mode: Mode
    norms: Float[Tensor, " g"]
    dimensions: Dimensions
    sizes: Float[Tensor, " g"]
    observations: float
    evidence: Evidence | None = None

    @property
    def log_marginal(self) -> float | None:
        """Log evidence at w*, nats, where it is exact."""
        if self.evidence is None:
            return None
        with torch.no_grad():
            return float(self.evidence.log_marginal(self.precisions, self.scale))

    @property
    def gamma(self) -> float:
        """Effective dimension: directions the data determined."""
        return float(self.dimensions.groups.sum())

    def step(self, posterior: Posterior, log_marginal: float | None) -> Step:
        """What it leaves in the trace of a posterior.

        Args:
            posterior: The posterior.
            log_marginal: Log evidence, nats, where it is exact.
        """
        return replace(
            step_of(posterior, log_marginal, self.precisions, self.scale, self.dimensions.total),
            effective_dimension_error=self.dimensions.error or None,
            mode_norms=tuple(self.norms.tolist()),
            mode_nll=self.mode.nll,
        )


@final
@dataclass(frozen=True, eq=False)
class Expectation:
    """The expectation of a posterior: exact where its evidence is, by draws otherwise.

    Args:
        posterior: The posterior, at the precisions it starts from.
        tangent: The tangent model.
        solver: What finds the mode and the draws; ``None`` for the posterior's own, or ``CG`` with its curvature as a
            preconditioner.
        samples: Draws.
        estimator: How the effective dimension comes from them.
        rtol: Relative gradient at which a mode is found; by mini-batches it is the solver's.
        seed: Of the noise of draws that are not the posterior's.

    Raises:
        NumericalError: If the curvature is indefinite.
        UnsupportedError: If the posterior has neither an exact evidence nor a solver.
    """

    posterior: Posterior
    tangent: Tangent
    solver: Solver | None
    samples: int
    estimator: Estimator
    rtol: float
    seed: int

    def __post_init__(self) -> None:
        if not isinstance(self.posterior, ExactPosterior | SolvedWeights):
            raise UnsupportedError(
                "a posterior whose evidence is exact, or one that solves with its precision",
                f"a {type(self.posterior).__name__}",
                "LowRank(...), KFAC(), MatrixFree() or Sampled()",
            )
        if isinstance(self.posterior, ExactPosterior):
            check_definite(self.posterior.evidence)

    def first(self) -> State:
        """The state before the first expectation; draws of a sampled posterior have the noise of its own, first.

        Cost:
            By draws, a product with a root of G.
        """
        state = State(self.posterior.prior_precisions, self.posterior.scale)
        if self._solved is None:
            return state
        own = self.posterior if isinstance(self.posterior, SampledPosterior) else None
        known = [] if own is None else [own.perturbation.head(self.samples)]
        fresh = self.samples - (0 if own is None else min(self.samples, own.samples))
        with torch.no_grad():
            if fresh:
                generator = torch.Generator().manual_seed(self.seed)
                known.append(self._solved.problem.perturbation(fresh, generator=generator))
            noise = Perturbation.joined(known)
        return replace(state, noise=noise, draws=noise.prior)

    def prepare(self) -> None:
        """Make what solves share: the same wherever a run goes on, so that the same numbers follow.

        That is the preconditioner, at the precisions the run starts from, and what products keep of the data, without
        which mini-batches come in the order of the data the first time, and shuffled from then on.
        """
        solver, network = self.solver_used, self.posterior.network
        prior = self.posterior.prior.operator(network.uncertain, network.like)
        problem = self.tangent.problem(network.weights, prior, self.posterior.noise_scale)
        with torch.no_grad():
            if self._solved is not None:
                solver.prepared(self._solved.problem)
                problem.kept.update(self._solved.problem.kept)
            solver.prepared(problem)
            for _ in self.tangent.training.visit(self.samples if self._solved is not None else 1):
                pass

    def at(self, state: State, progress: bool = False) -> tuple[Expected, State, Solution | None]:
        """What expectation says at the precisions of a state.

        Args:
            state: The precisions, and where to start from.
            progress: Whether to show progress bars.

        Returns:
            What it says; the state with its mode and draws; how well the draws were solved for.

        Cost:
            A mode. By draws, a block solve started from the last draws, and a product with G.
        """
        posterior, layout = self.posterior, self.posterior.network.uncertain
        prior = posterior.prior.with_precisions(state.precisions.cpu()).operator(layout, posterior.network.like)
        scale = float(state.scale)
        solver = self.solver_used
        rtol = None if isinstance(solver, SGD) else self.rtol
        start = self._start(state)
        mode = self.tangent.mode(prior, scale, solver=solver, initial=start, rtol=rtol, progress=progress)
        logger.debug("mode: gradient %.2g after %d products", mode.gradient, mode.matvecs)
        norms = posterior.prior.square_norms(mode.weights, layout)
        state = replace(state, weights=mode.weights)
        if isinstance(posterior, ExactPosterior):
            evidence = at_mode(posterior.evidence, norms, nll=mode.nll, misfit=mode.misfit)
            dimensions = Dimensions.exact(evidence.effective_dimensions(state.precisions, state.scale))
            return self._expected(state, mode, norms, dimensions, evidence), state, None
        drawn, dimensions = self._drawn(state, prior, scale)
        state = replace(state, draws=prior.root() @ drawn.value)
        return self._expected(state, mode, norms, dimensions, None), state, drawn

    def _start(self, state: State) -> Float[Tensor, " d"] | None:
        """Where to look for the mode: at the last one, or where a kernel between all training rows has it at once."""
        posterior = self.posterior
        if not isinstance(posterior, FunctionPosterior) or posterior.fitted.noise is None:
            return state.weights
        step = chosen(posterior, state.precisions, state.scale, ()).newton_step()
        if step is None or self.tangent.target != "affine":
            return state.weights
        return posterior.network.weights + step

    def _expected(
        self, state: State, mode: Mode, norms: Tensor, dimensions: Dimensions, evidence: Evidence | None
    ) -> Expected:
        group, groups = self._groups
        sizes = torch.bincount(group, minlength=groups).to(norms)
        observations = self.posterior.totals.observations if self.posterior.fitted.noise else 0.0
        return Expected(state.precisions, state.scale, mode, norms, dimensions, sizes, observations, evidence)

    def _drawn(self, state: State, prior: Diagonal, scale: float) -> tuple[Solution, Dimensions]:
        """Draws of the posterior, and what they say of the effective dimension."""
        if self._solved is None or state.noise is None or state.draws is None:
            raise MismatchError("a state that has draws", "one of an exact run", "another checkpoint=")
        problem = self._solved.problem.with_prior(prior, scale)
        with torch.no_grad():
            b, start = state.noise.right_hand_side(problem), prior.inverse_root() @ state.draws
            drawn = self.solver_used.resumed(problem, b, start)
        group, groups = self._groups
        sizes = torch.bincount(group, minlength=groups).double()
        return drawn, by_draws(problem, drawn.value, group, sizes, self.estimator)

    def drawn(self, state: State) -> Float[Tensor, "d k"]:
        """The draws of a state, in the weights' own units.

        Raises:
            MismatchError: If it has none.
        """
        if state.draws is None:
            raise MismatchError("a state that has draws", "one of an exact run", "another checkpoint=")
        posterior = self.posterior
        prior = posterior.prior.with_precisions(state.precisions.cpu())
        return prior.operator(posterior.network.uncertain, posterior.network.like).inverse_root() @ state.draws

    @property
    def _groups(self) -> tuple[Int[Tensor, " d"], int]:
        return self.posterior.prior.groups(self.posterior.network.uncertain)

    @property
    def _solved(self) -> SolvedWeights | None:
        return self.posterior if isinstance(self.posterior, SolvedWeights) else None

    @cached_property
    def solver_used(self) -> Solver:
        """What finds the mode and the draws; a posterior that holds its curvature has it as a preconditioner."""
        if self.solver is not None:
            return self.solver
        if self._solved is not None:
            return self._solved.solver
        held = self.posterior.held.operator if isinstance(self.posterior, WeightPosterior) else None
        return CG(preconditioner=None if held is None else Known(held))
