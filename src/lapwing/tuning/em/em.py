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
from lapwing.ground.files.atomic import file_at
from lapwing.ground.files.checkpoint import Checkpoint
from lapwing.ground.precision import wide
from lapwing.ground.progress import Bar
from lapwing.linear.solvers import Solver
from lapwing.linear.tangent import Target
from lapwing.posteriors import Posterior
from lapwing.posteriors.effective_dimension import LEAST, Estimator
from lapwing.posteriors.iterative import warn_unless
from lapwing.tuning.em.expectation import Expectation, Expected, warn_unless_found
from lapwing.tuning.em.maximisation import Maximised, maximised
from lapwing.tuning.em.state import CHECKPOINT, State
from lapwing.tuning.hyperparameters import Hyperparameters
from lapwing.tuning.method import LinearPosterior, Q
from lapwing.tuning.noise import NoiseRule, noises_now, output_residuals
from lapwing.tuning.result import hyperparameters_of, result_of, tunes_noise

logger = logging.getLogger(__name__)

ACCURACY = 0.05
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
        posterior.prior.check_centred(f"{type(self).__name__}(), whose linear model is trained anew")
        if self.data is not None:
            posterior = cast(Q, posterior.with_training_data(self.data, self.unpack))
        training = posterior.training
        expectation = self._expectation(posterior)
        file: Checkpoint[State] | None = None
        state: State | None = None
        if self.checkpoint is not None:
            file = Checkpoint(CHECKPOINT, State, file_at(self.checkpoint), self._settings(posterior))
            state = file.read(training.weights.device)
        if state is None:
            state = expectation.first()
        else:
            expectation.check(state)
        if file is not None:
            hint = "a checkpoint= on a disk that all processes share"
            check_alike(training.data.shared, len(state.trace), "steps so far", hint)
        with_noise = tunes_noise(posterior, self.noise)
        state = self._run(expectation, state, with_noise, file, progress)
        assert state.measured is not None
        best = Hyperparameters(state.measured[:-1], state.measured[-1])
        return result_of(posterior, best, state.trace, state.draws, with_noise=with_noise)

    def noise_rule(self) -> NoiseRule | None:
        """See ``TunesNoise``; without the checkpoint, which is that of one curvature.

        Cost:
            An expectation, and a forward pass over the training data with a product with J.
        """
        if not self.noise:
            return None
        return NoiseRule(self.noises, replace(self, noise=False, checkpoint=None, data=None))

    def noises(self, posterior: Posterior) -> Float[Tensor, " c"]:
        """The maximisation for the noise precision of each output: equation 6.11 with the share that it has in γ.

        Args:
            posterior: The posterior at whose prior and noise it is asked for.
        """
        expectation = self._expectation(posterior)
        found = expectation.expect(expectation.first())
        draws = found.state.draws
        if draws is not None:
            draws = expectation.prior(found.state).inverse_root() @ draws
        sums = output_residuals(posterior, weights=found.mode.weights, target=self.target, draws=draws)
        return sums.noises(noises_now(posterior), found.gamma)

    def _expectation(self, posterior: Q) -> Expectation[Q]:
        """What says how the data are at some prior and noise."""
        single = posterior.training.weights.dtype != torch.float64
        rtol = max(0.1 * self.tolerance, 1e-4 if single else 1e-10)  # off by little beside the tolerance
        return Expectation(posterior, self.target, self.solver, self.samples, self.estimator, rtol, self.seed)

    def _run(
        self,
        expectation: Expectation[Any],
        state: State,
        with_noise: bool,
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
                    found, after = self._step(expectation, state, with_noise, bar, progress)
                    state = after.state
                    if file is not None:
                        once(expectation.tangent.training.data.shared, partial(file.write, state))
                    precision = state.trace[-1].prior_precision[0]
                    bar.update(said=f"precision {precision:.3g}, its logarithm {after.distance:.1g} from the end")
                    logger.debug("EM step %d: %s, %.2g left", len(state.trace), state.trace[-1], after.distance)
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

    def _step(
        self, expectation: Expectation[Any], state: State, with_noise: bool, bar: Bar, progress: bool | None
    ) -> tuple[Expected, Maximised]:
        """A step, as exact as the last one was far; the one that seems to be the last, to the full tolerance."""
        rtol = max(expectation.rtol, ACCURACY * min(1.0, last_move(state)))
        found = expectation.expect(state, progress, rtol)
        bar.check()
        after = maximised(expectation.posterior, found, with_noise, self.tolerance)
        if after.state.settled and rtol > expectation.rtol:
            found = expectation.expect(found.state, progress)
            bar.check()
            after = maximised(expectation.posterior, found, with_noise, self.tolerance)
        return found, after

    def _warn(self, expectation: Expectation[Any], found: Expected, steps: int) -> None:
        """Warn where the last solves missed their tolerance, or there was nothing to learn from."""
        solver = expectation.solver_used
        if found.drawn is not None:
            warn_unless(found.drawn, solver.cure)
        if expectation.posterior.fitted.noise is None or solver.by_mini_batches:
            warn_unless_found(found.mode, solver)  # a parabola's is missed by rounding alone
        gamma = found.dimensions.groups
        errors = found.dimensions.errors
        lost = (gamma <= LEAST) & (errors > LEAST)
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
                f"told from 0, its standard error up to {float(errors[lost].max()):.2g}: their precisions are no more "
                "than a guess. Try a larger samples=, or estimator='outputs'",
                ConvergenceWarning,
            )

    def _settings(self, posterior: Posterior | LinearPosterior) -> dict[str, str]:
        """What a run depends on."""
        weights = wide(posterior.training.weights)
        prior = posterior.prior.diagonal(posterior.training.layout, weights)
        totals = posterior.totals
        system = posterior.system
        settings = {
            "network": posterior.weights_fingerprint(),
            "weights": f"{len(weights)}",
            "data": f"{totals.examples} examples, {totals.nll:.6g} nats",
            "posterior": f"{type(posterior).__name__}{self._known_of(posterior)}",
            "prior": f"{type(posterior.prior).__name__}, its precisions {float(prior.sum()):.9g} in sum, their "
            f"logarithms {float(prior.log().sum()):.9g}",
            "likelihood": f"{posterior.likelihood}, fitted with {posterior.fitted}",
            "posterior's solver": f"{None if system is None else system.solver}",
        }
        for option in fields(self):
            if option.compare and option.name != "steps":
                settings[option.name] = f"{getattr(self, option.name)}"
        return settings

    def _known_of(self, posterior: Posterior | LinearPosterior) -> str:
        """What tells a posterior from others of its kind: its evidence where it is exact, or the noise of its draws."""
        evidence = posterior.evidence
        if evidence is not None:
            now = hyperparameters_of(posterior)
            return f" of log evidence {finite_evidence(float(evidence.log_marginal(now.precisions, now.scale))):.6g}"
        noise = posterior.draw_noise
        if noise is not None:
            draws = noise.prior.shape[1]
            return f" of {draws} draws, noise {noise.head(self.samples).fingerprint()}"
        return ""


def last_move(state: State) -> float:
    """How far the last step led to moving a log precision; infinitely far before the first."""
    return math.inf if state.moves is None else float(state.moves.abs().max())
