"""Expectation maximisation of the evidence of the tangent model."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field, fields, replace
from functools import partial
from os import PathLike
from typing import Any, cast, final, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data.sources import Source, Unpack
from lapwing.ground.distributed import check_alike, once
from lapwing.ground.errors import (
    ConvergenceWarning,
    check_count,
    check_kind,
    check_option,
    check_positive,
    finite_evidence,
    warn,
)
from lapwing.ground.files.archive import Archive
from lapwing.ground.files.atomic import file_at
from lapwing.ground.files.checkpoint import Checkpoint
from lapwing.ground.progress import Bar
from lapwing.linear.model import LinearModel
from lapwing.linear.solvers import Solver
from lapwing.linear.tangent import Target
from lapwing.posteriors import ExactPosterior, Posterior
from lapwing.posteriors.dimension import LEAST, Estimator
from lapwing.posteriors.draws import SampledPosterior
from lapwing.posteriors.solved import warn_unless
from lapwing.tuning.choices import Q, distance, ended, fixed_point, tunes_noise
from lapwing.tuning.expectation import Expectation, Expected, State, warn_unless_found, with_data
from lapwing.tuning.noise import output_sums, own_noises
from lapwing.tuning.solved import Solved

logger = logging.getLogger(__name__)

CHECKPOINT = Archive(
    "lapwing.em", "lapwing.em", 4, "EM(checkpoint=...)", "another checkpoint=, or deleting the file", oldest=4
)
"""The kind of file a state is kept in; its schema is raised whenever an older file would be misread."""

SHARE = 0.5
"""Precisions need not be nearer their fixed point than this part of the standard error of their estimate."""

SLACK = 0.05
"""Relative gradient of a mode, and error of draws, for each unit that the last step moved a log precision by."""


@final
@dataclass(frozen=True)
class EM:
    """Expectation maximisation of the evidence at the mode of the tangent model (Antorán 2024, chapter 6).

        expectation     w* = argmin s Σ_i ℓ(y_i, h(w, x_i)) + ½ |w|²_A,     γ_g = n_g - α_g tr(Λ⁻¹)_g
        maximisation    α_g ← γ_g / |w*_g|²,     s ← (N - γ) / |y - h(w*)|²_B           (equations 2.45, 6.10 and 6.11)

    The trained weights of a network that stopped early, or that normalises, are no mode of anything: the evidence at
    them asks for far too weak a prior. The mode of its linear model is one, for every prior (section 5.2). Curvature
    and predictions stay at the trained weights.

    γ is exact where the posterior's evidence is. Otherwise it comes from draws, each a solve: no log-determinant,
    nothing d × d. Their noise is drawn once, so that the steps converge, and every solve starts from the last. It ends
    where it is off by a twentieth of the last move; in the last step, by a tenth of ``tolerance``. A solver with a
    tolerance of its own keeps to that.

    It ends where no log precision is further from its fixed point than ``tolerance``, or than half the standard error
    of its estimate, if moves go on shrinking as they did. Precisions of groups in which the data determined less than a
    hundredth of a direction are not waited for: they may grow for ever, to no effect.

    Args:
        estimator: How γ comes from draws: of the ``"outputs"``, of the ``"weights"``, or ``"auto"``, by whichever
            varied less.
        samples: Draws; of a sampled posterior its own first, at most so many. Few leave the noise of few: on 512 draws,
            ``samples=16`` and ``512`` may end a third apart.
        steps: Most steps.
        tolerance: See above.
        noise: Whether to choose the noise of a Gaussian likelihood too, that of each output unless they share one;
            precisions stay between 1e-10 and 1e12 times those of before.
        target: Tangent model: ``"affine"``, or ``"simplified"`` without the offset.
        solver: Finds the modes and the draws; ``None`` for the posterior's own, or ``CG`` with its curvature.
        data: The training data, for a posterior from a file.
        unpack: Splits one element of them into inputs and targets.
        checkpoint: A file that is written after every step, and gone on from if it is there.
        seed: Of the noise of draws that are not the posterior's.

    Raises:
        ConfigError: If an option makes no sense.

    Cost:
        A step: a mode, and by draws a block solve with one product more. Memory: by draws ``4 d samples`` numbers and
        the solver's. A noise for each of several outputs: all steps again, a fit and a pass over the training data,
        about four times; a checkpoint is of the first.

    Example:
        >>> import lapwing as lw
        >>> x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
        >>> posterior = lw.Laplace(lw.Gaussian(), structure=lw.MatrixFree()).fit(torch.nn.Linear(3, 1), (x, x[:, :1]))
        >>> tuned = lw.tune(posterior, EM(noise=False))
        >>> 1 < tuned.prior.precision < 10
        True
    """

    estimator: Estimator = "auto"
    samples: int = 16
    steps: int = 20
    tolerance: float = 1e-2
    noise: bool = True
    target: Target = "affine"
    solver: Solver | None = None
    data: Source | None = field(default=None, compare=False, repr=False)
    unpack: Unpack | None = field(default=None, compare=False, repr=False)
    checkpoint: str | PathLike[str] | None = field(default=None, compare=False)
    seed: int = 0

    def __post_init__(self) -> None:
        check_option("estimator", self.estimator, get_args(Estimator))
        check_option("target", self.target, get_args(Target))
        check_kind("noise=", self.noise, (bool,), "True or False")
        check_count("samples", self.samples)
        check_count("steps", self.steps)
        check_count("seed", self.seed, 0)
        check_positive("tolerance", self.tolerance)
        check_kind("solver=", self.solver, (Solver, type(None)), "CG() or SGD()")

    def tune(self, posterior: Q, progress: bool | None) -> Q:
        """The posterior at the fixed point.

        Args:
            posterior: The posterior.
            progress: Whether to show progress bars; ``None`` for after two seconds, in a terminal or notebook.

        Raises:
            DataError: If the data are not those of the fit, or the checkpoint lacks what the posterior needs.
            MismatchError: If the checkpoint is that of another run.
            UnsupportedError: If the posterior lacks its training data, or knows neither its evidence nor a solver.

        Warns:
            ConvergenceWarning: If it ended before its fixed point, the last mode or draws missed their tolerance, or
                there was nothing to learn from.
        """
        if isinstance(posterior, Posterior):
            posterior = with_data(posterior, self.data, self.unpack)
        training = posterior.training
        like = training.weights
        expectation = self._expectation(posterior)
        file = (
            None
            if self.checkpoint is None
            else Checkpoint(CHECKPOINT, State, file_at(self.checkpoint), self._settings(posterior, training))
        )
        known = file.read(like.device) if file else None
        if known is not None:
            expectation.check(known)
        state = known or expectation.first()
        if file:
            hint = "a checkpoint= on a disk that all processes share"
            check_alike(training.data.shared, len(state.trace), "steps so far", hint)
        noisy = tunes_noise(posterior, self.noise)
        state = self._run(expectation, state, noisy, file, progress)
        assert state.measured is not None
        precisions, scale = state.measured[:-1], state.measured[-1]
        return ended(posterior, precisions, scale, state.trace, state.draws, noisy=noisy)

    @property
    def noisy(self) -> bool:
        """Whether the noise of a Gaussian likelihood is chosen."""
        return self.noise

    def own_noises(self, posterior: Posterior) -> Float[Tensor, " c"]:
        """The maximisation for the noise precision of each output: equation 6.11 with the share that it has in γ.

        Args:
            posterior: The posterior at whose prior and noise it is asked for.

        Cost:
            An expectation, and a forward pass over the training data with a product with J.
        """
        expectation = self._expectation(posterior)
        found = expectation.at(expectation.first())
        draws = found.state.draws
        if draws is not None:
            draws = expectation.prior(found.state).inverse_root() @ draws
        sums = output_sums(posterior, weights=found.mode.weights, target=self.target, draws=draws)
        return sums.noises(cast(Tensor, own_noises(posterior)), found.gamma)

    def for_prior(self) -> EM:
        """The same for the prior alone, without the checkpoint, which is that of one curvature."""
        return replace(self, noise=False, checkpoint=None, data=None)

    def _expectation(self, posterior: Q) -> Expectation[Q]:
        """What says how the data are at some prior and noise."""
        like = posterior.training.weights
        rtol = max(0.1 * self.tolerance, 1e-10 if like.dtype == torch.float64 else 1e-4)  # off by little beside it
        return Expectation(posterior, self.target, self.solver, self.samples, self.estimator, rtol, self.seed)

    def _run(
        self,
        expectation: Expectation[Any],
        state: State,
        noisy: bool,
        file: Checkpoint[State] | None,
        progress: bool | None,
    ) -> State:
        """Go on from a state to the end."""
        expectation.prepare()
        found: Expected | None = None
        interrupted = False
        bar = Bar("EM", most=self.steps + 1, done=len(state.trace), progress=progress)
        try:
            with bar:
                while not state.settled and len(state.trace) <= self.steps:
                    accuracy = max(expectation.rtol, SLACK * min(1.0, last_move(state)))
                    here = expectation.at(state, progress, accuracy)
                    bar.check()
                    after, left = self._maximised(expectation.posterior, here, noisy)
                    if after.settled and accuracy > expectation.rtol:
                        here = expectation.at(here.state, progress)
                        bar.check()
                        after, left = self._maximised(expectation.posterior, here, noisy)
                    found, state = here, after
                    if file:
                        once(expectation.tangent.training.data.shared, partial(file.write, state))
                    precision = state.trace[-1].prior_precision[0]
                    bar.update(said=f"precision {precision:.3g}, its logarithm {left:.1g} from the end")
                    logger.debug("EM step %d: %s, %.2g left", len(state.trace), state.trace[-1], left)
        except KeyboardInterrupt:
            if state.measured is None:
                raise
            interrupted = True
            said = f"EM: interrupted after {len(state.trace) - 1} steps: these choices are the last"
            warn(said, ConvergenceWarning)
        if found is not None:
            self._warn(expectation, found, len(state.trace))
        if not state.settled and not interrupted and state.moves is not None:
            warn(
                f"expectation maximisation ended after {len(state.trace) - 1} steps, the last of which would move a "
                f"log precision by {last_move(state):.1e}. Try a larger steps=, or a prior with fewer precisions",
                ConvergenceWarning,
            )
        return state

    def _maximised(self, posterior: Posterior | Solved, found: Expected, noisy: bool) -> tuple[State, float]:
        """The state after a step, and how far a log precision is from the end at most."""
        state, misfit, log_marginal = found.state, found.state.scale.new_tensor(found.mode.misfit), None
        if found.evidence is not None:
            with torch.no_grad():
                log_marginal = finite_evidence(float(found.evidence.log_marginal(state.precisions, state.scale)))
        gamma, observations = found.dimensions.groups, posterior.totals.observations
        precisions, scale = fixed_point(gamma, found.norms, misfit, state.scale, observations, noisy)
        moves = moves_of(found, precisions, scale, noisy)
        left = distance(moves, state.moves)
        after = replace(
            state,
            precisions=precisions,
            scale=scale,
            trace=(*state.trace, replace(found.step(posterior), log_marginal=log_marginal)),
            measured=torch.cat([state.precisions, state.scale.view(1)]),
            moves=moves,
            settled=bool((left <= enough(found, observations, self.tolerance)).all()),
        )
        return after, float(left.max())

    def _warn(self, expectation: Expectation[Any], found: Expected, steps: int) -> None:
        """Warn where the last solves missed their tolerance, or there was nothing to learn from."""
        solver = expectation.solver_used
        if found.drawn is not None:
            warn_unless(found.drawn, solver.cure)
        if expectation.posterior.fitted.noise is None or solver.by_mini_batches:
            warn_unless_found(found.mode, solver)  # a parabola's is missed by rounding alone
        gamma, noise = found.dimensions.groups, found.dimensions.errors
        lost = (gamma <= LEAST) & (noise > LEAST)
        if steps == 1 and not bool(((gamma > LEAST) | lost).any()):
            start = found.state.precisions.tolist()[:3]
            warn(
                f"the data determined less than {LEAST} directions at the prior precisions {start} that the search "
                "began with, and it ended there. Try a weaker prior to start from",
                ConvergenceWarning,
            )
        if bool(lost.any()):
            warn(
                f"by {self.samples} draws the effective dimension of {int(lost.sum())} of {len(lost)} groups cannot be "
                f"told from 0, its standard error up to {float(noise[lost].max()):.2g}: their precisions are no more "
                "than a guess. Try a larger samples=, or estimator='outputs'",
                ConvergenceWarning,
            )

    def _settings(self, posterior: Posterior | Solved, model: LinearModel) -> dict[str, str]:
        """What a run depends on."""
        totals, known, weights = posterior.totals, "", model.weights.double()
        prior = posterior.prior.diagonal(model.layout, weights)
        if isinstance(posterior, Posterior):
            network = posterior.network.fingerprint()
        else:
            network = f"weights {float(weights.sum()):.12g} in sum"
        if isinstance(posterior, ExactPosterior):
            known = f" of log evidence {posterior.log_marginal():.6g}"
        elif isinstance(posterior, SampledPosterior):
            known = f" of {posterior.samples} draws, noise {posterior.perturbation.head(self.samples).fingerprint()}"
        return {
            "network": network,
            "weights": f"{len(weights)}",
            "data": f"{totals.examples} examples, {totals.nll:.6g} nats",
            "posterior": f"{type(posterior).__name__}{known}",
            "prior": f"{type(posterior.prior).__name__}, its precisions {float(prior.sum()):.9g} in sum, their "
            f"logarithms {float(prior.log().sum()):.9g}",
            "likelihood": f"{posterior.likelihood}, fitted with {posterior.fitted}",
            "posterior's solver": f"{getattr(posterior, 'solver', None)}",
        } | {it.name: f"{getattr(self, it.name)}" for it in fields(self) if it.compare and it.name != "steps"}


def last_move(state: State) -> float:
    """How far the last step led to moving a log precision; infinitely far before the first."""
    return math.inf if state.moves is None else float(state.moves.abs().max())


def moves_of(
    found: Expected, precisions: Float[Tensor, " g"], scale: Float[Tensor, ""], noisy: bool
) -> Float[Tensor, " m"]:
    """Moves of the log precisions, the noise's last; 0 for those that are not waited for.

    Args:
        found: What expectation said.
        precisions: Prior precisions that maximisation led to.
        scale: Relative noise precision that it led to.
        noisy: Whether the noise may change.
    """
    moves = torch.cat([(precisions / found.state.precisions).log(), (scale / found.state.scale).log().view(1)])
    waited = torch.cat([found.dimensions.groups > LEAST, torch.tensor([noisy], device=moves.device)])
    return torch.where(waited, moves, 0.0)


def enough(found: Expected, observations: float, tolerance: float) -> Float[Tensor, " m"]:
    """The distance at which each log precision has settled, the noise's last: at best part of its standard error.

    Of the logarithm of a precision that follows γ that is the error of log γ, of the noise's that of log (N - γ).
    """
    gamma, free = found.dimensions.groups, max(observations - found.gamma, found.gamma)
    errors = found.dimensions.errors / gamma.clamp_min(LEAST)
    errors = torch.cat([errors, errors.new_tensor([found.dimensions.error / free if free else 0.0])])
    return torch.nan_to_num(SHARE * errors, nan=0.0, posinf=0.0).clamp_min(tolerance)
