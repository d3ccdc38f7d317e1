"""The mode of the tangent model and the effective dimension of its posterior, at some prior and noise precision."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.fold import check_same
from lapwing.ground.data.sources import Data, Source, Unpack
from lapwing.ground.distributed import several
from lapwing.ground.errors import ConfigError, ConvergenceWarning, DataError, UnsupportedError, warn
from lapwing.ground.results import Solution
from lapwing.likelihoods import Gaussian, HeteroscedasticGaussian
from lapwing.linalg import Diagonal
from lapwing.linear.evidence import LogEvidence
from lapwing.linear.perturbation import Perturbation
from lapwing.linear.preconditioners.base import GivenCurvature
from lapwing.linear.problem import Problem
from lapwing.linear.solvers import CG, Solver
from lapwing.linear.tangent import Mode, Tangent, Target
from lapwing.posteriors import ExactPosterior, FunctionPosterior, Posterior, Step, WeightPosterior
from lapwing.posteriors.dimension import Dimensions, Estimator, by_draws, output_squares
from lapwing.posteriors.draws import SampledPosterior
from lapwing.structures.selection import last_layer
from lapwing.tuning.choices import P, Q, at_mode, check_definite, chosen, solves, step_of
from lapwing.tuning.solved import Solved

logger = logging.getLogger(__name__)


def natural_target(posterior: Posterior) -> Target:
    """Simplified where outputs have no noise of their own and the last layer is linear and uncertain, else affine."""
    network, data = posterior.network, posterior.training.data
    if isinstance(posterior.fitted, Gaussian | HeteroscedasticGaussian):
        return "affine"
    if not network.tied:  # the last layer, by a name of its own
        return "simplified"
    try:
        head = last_layer(network.whole, data)
    except ConfigError:
        return "affine"
    return "simplified" if network.index is None and set(head) <= set(network.names) else "affine"


def with_data(posterior: P, source: Source | None, unpack: Unpack | None = None) -> P:
    """The posterior with training data that were given later; itself where none were.

    Raises:
        DataError: If they are not those of the fit.
    """
    if source is None:
        return posterior
    data = Data(source, like=posterior.network.like, unpack=unpack, shared=several())
    model = replace(posterior.model, source=data)
    check_same(model, posterior.totals)
    return replace(posterior, model=model)


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
class State:
    """Where expectation maximisation has come to.

    Args:
        precisions: Prior precisions of the next expectation.
        scale: Its relative noise precision.
        trace: Steps so far.
        measured: Prior precisions, then the relative noise precision, of the last of them.
        moves: How far it led to moving the log precisions, the noise's last.
        settled: Whether no more is needed.
        weights: The last mode w*.
        noise: The noise of the draws; ``None`` where there are none.
        draws: The last draws, in units in which the prior is standard normal.
    """

    precisions: Float[Tensor, " g"]
    scale: Float[Tensor, ""]
    trace: tuple[Step, ...] = ()
    measured: Float[Tensor, " m"] | None = None
    moves: Float[Tensor, " m"] | None = None
    settled: bool = False
    weights: Float[Tensor, " d"] | None = None
    noise: Perturbation | None = None
    draws: Float[Tensor, "d k"] | None = None


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

    def step(self, posterior: Posterior | Solved) -> Step:
        """What it leaves in the trace of a posterior, but for what was maximised."""
        return replace(
            step_of(posterior, None, self.state.precisions, self.state.scale, self.dimensions.total),
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
        if isinstance(self.posterior, ExactPosterior):
            check_definite(self.posterior.evidence)
        elif not solves(self.posterior):
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
        known = self.posterior.problem.model if solves(self.posterior) else None
        return Tangent(known or self.posterior.training, self.target)

    def first(self) -> State:
        """The state before the first expectation; draws of a sampled posterior have the noise of its own, first.

        Cost:
            By draws, a product with a root of G.
        """
        posterior, known = self.posterior, list[Perturbation]()
        precisions = posterior.prior_precisions
        state = State(precisions, precisions.new_tensor(posterior.noise_scale))
        if not solves(posterior):
            return state
        if isinstance(posterior, SampledPosterior):
            known.append(posterior.perturbation.head(self.samples))
        fresh = self.samples - sum(part.prior.shape[1] for part in known)
        with torch.no_grad():
            if fresh:
                generator = torch.Generator().manual_seed(self.seed)
                known.append(Perturbation.drawn(posterior.problem, fresh, generator=generator))
            noise = Perturbation.joined(known)
        return replace(state, noise=noise, draws=noise.prior)

    def check(self, state: State) -> None:
        """Refuses a state that this expectation cannot have left: parts that are missing, of other sizes or types.

        Args:
            state: From a file.

        Raises:
            DataError: Naming the part.
        """
        precisions, weights = self.posterior.prior_precisions, self.tangent.training.weights
        choices = len(precisions) + 1
        drawn = solves(self.posterior)
        noise = state.noise
        like = {
            "precisions": (state.precisions, (len(precisions),), precisions.dtype, True),
            "scale": (state.scale, (), precisions.dtype, True),
            "measured": (state.measured, (choices,), precisions.dtype, bool(state.trace) or state.settled),
            "moves": (state.moves, (choices,), precisions.dtype, bool(state.trace)),
            "weights": (state.weights, (len(weights),), weights.dtype, bool(state.trace)),
            "noise.data": (noise and noise.data, (len(weights), self.samples), weights.dtype, drawn),
            "noise.prior": (noise and noise.prior, (len(weights), self.samples), weights.dtype, drawn),
            "draws": (state.draws, (len(weights), self.samples), weights.dtype, drawn),
        }
        for name, (value, shape, dtype, needed) in like.items():
            if value is None and not needed:
                continue
            if value is None or tuple(value.shape) != shape or value.dtype != dtype:
                got = "none" if value is None else f"{list(value.shape)} of {value.dtype}"
                expected = f"{name} of shape {list(shape)} and {dtype} in the checkpoint"
                raise DataError(expected, got, "another checkpoint=, or deleting the file")

    def prepare(self) -> None:
        """Make what solves share: the same wherever a run goes on, so that the same numbers follow.

        That is the preconditioner, at the precisions the run starts from, and what products keep of the data, without
        which mini-batches come in the order of the data the first time, and shuffled from then on.
        """
        solver, posterior, columns = self.solver_used, self.posterior, 1
        model = self.tangent.training
        prior = posterior.prior.operator(model.layout, model.weights)
        problem = self.tangent.problem(model.weights, prior, posterior.noise_scale)
        with torch.no_grad():
            if solves(posterior):
                solver.preconditioner_of(posterior.problem)
                problem.curvature_cache.update(posterior.problem.curvature_cache)
                columns = self.samples
            solver.preconditioner_of(problem)
            for _ in model.visit(columns):
                pass

    def at(self, state: State, progress: bool | None = None, rtol: float | None = None) -> Expected:
        """What expectation says at the precisions of a state.

        Args:
            state: The precisions, and where to start from.
            progress: Whether to show progress bars; ``None`` for after two seconds, in a terminal or notebook.
            rtol: Relative gradient and error of draws now; ``None`` for those of the expectation.

        Cost:
            A mode. By draws, a block solve started from the last draws, and a product with G.
        """
        posterior, solver, layout = self.posterior, self.solver_used, self.tangent.training.layout
        prior, rtol, start, scale = self.prior(state), rtol or self.rtol, self._start(state), float(state.scale)
        limit = None if solver.by_mini_batches else rtol
        mode = self.tangent.mode(prior, scale, solver=solver, initial=start, rtol=limit, progress=progress)
        logger.debug("mode: gradient %.2g after %d products", mode.gradient, mode.matvecs)
        norms = posterior.prior.square_norms(mode.weights, layout)
        state = replace(state, weights=mode.weights)
        if isinstance(posterior, ExactPosterior):
            evidence = at_mode(posterior.evidence, norms, nll=mode.nll, misfit=mode.misfit)
            dimensions = Dimensions.exact(evidence.effective_dimensions(state.precisions, state.scale))
            return Expected(state, mode, norms, dimensions, evidence)
        assert solves(posterior) and state.noise is not None and state.draws is not None
        problem = posterior.problem.with_prior(prior, scale)
        with torch.no_grad():
            b = state.noise.right_hand_side(problem)
            drawn = self._drawing(problem, b, rtol).resumed(problem, b, prior.inverse_root() @ state.draws)
        draws, (group, groups) = drawn.value, posterior.prior.groups(layout)
        dimensions = by_draws(
            draws, prior.values, group, lambda: scale * output_squares(problem, draws, group, groups), self.estimator
        )
        state = replace(state, draws=prior.root() @ draws)
        how = replace(drawn, value=draws.abs().amax(0, keepdim=True))  # enough to tell which are 0
        return Expected(state, mode, norms, dimensions, drawn=how)

    def _drawing(self, problem: Problem, b: Float[Tensor, "d k"], rtol: float) -> Solver:
        """What solves for draws: where it was given no tolerance only as exactly as a step needs.

        In the units of the prior a draw has a length of at most about √d, and is off by at most its residual over the
        root of the smallest precision.
        """
        longest = (b.numel() * float(problem.prior.values.min())) ** 0.5
        return self.solver_used.loosely(rtol * longest / float(b.norm()), b.dtype)

    def _start(self, state: State) -> Float[Tensor, " d"] | None:
        """Where to look for the mode: at the last one, or where a kernel between all training rows has it at once."""
        posterior, step = self.posterior, None
        if isinstance(posterior, FunctionPosterior) and posterior.fitted.noise and self.target == "affine":
            step = chosen(posterior, state.precisions, state.scale, ()).newton_step()
        return state.weights if step is None else self.tangent.training.weights + step

    def prior(self, state: State) -> Diagonal:
        """The prior precision at a state."""
        model = self.tangent.training
        return self.posterior.prior.with_precisions(state.precisions.cpu()).operator(model.layout, model.weights)

    @cached_property
    def solver_used(self) -> Solver:
        """What finds the mode and the draws; a posterior that holds its curvature has it as a preconditioner."""
        if self.solver is not None:
            return self.solver
        if solves(self.posterior):
            return self.posterior.solver
        held = self.posterior.held.operator if isinstance(self.posterior, WeightPosterior) else None
        return CG(preconditioner=None if held is None else GivenCurvature(held))
