"""A lower bound on the evidence of the tangent model, with the expected likelihood as it is, not as a parabola."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import final, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data.inputs import Inputs, chunks
from lapwing.ground.data.sources import Source, Unpack
from lapwing.ground.errors import (
    ConfigError,
    ConvergenceWarning,
    check_count,
    check_kind,
    check_option,
    finite_evidence,
    warn,
)
from lapwing.ground.precision import wide
from lapwing.ground.progress import Bar
from lapwing.likelihoods import Gaussian, HeteroscedasticGaussian
from lapwing.linear.preconditioners import WeightedExamples, balanced_by_shape
from lapwing.linear.solvers import Solver
from lapwing.linear.tangent import Target
from lapwing.posteriors import Posterior, Step
from lapwing.predictive import FactorMoments, Moments, WideMoments
from lapwing.structures.selection import last_layer
from lapwing.tuning.em import EM
from lapwing.tuning.em.expectation import Expectation, Expected, warn_unless_found
from lapwing.tuning.em.state import State
from lapwing.tuning.gradient import climb
from lapwing.tuning.hyperparameters import BOUNDS, Hyperparameters
from lapwing.tuning.method import P
from lapwing.tuning.noise import NoiseRule
from lapwing.tuning.parabola import vertex
from lapwing.tuning.result import result_of, with_hyperparameters

logger = logging.getLogger(__name__)

RTOL = 3e-3
"""Relative gradient at which a mode is found, and error of draws: at ten times as much the bound of draws was off by 20
nats, in the direction that they were started from."""

STRIDE = math.log(10) / 2
"""Steps in the logarithm of the precisions: half a decade."""

LITTLE = 0.01
"""Nats that a bound must grow by: with ever stronger priors it may grow for ever, to no effect."""

HEAD_START = 30.0
"""Precisions of largest evidence at the trained weights are too small by about so much, or more."""

OUTPUTS = 64
"""Draws of the outputs of each example."""

BYTES = 2**28
"""Bytes these may take, with what their losses take (256 MiB), or those of one example."""

DRAWN = 12
"""Bytes an output drawn takes: itself, and its loss in float64."""


@final
@dataclass(frozen=True)
class ELBO:
    """Maximises a lower bound on the evidence of the tangent model, over one factor for the prior precisions.

        L = E[log p(y | h(w*) + J ζ)] - ½ (|w*|²_A + log det(I + A⁻¹ G) - γ),      ζ ~ N(0, Λ⁻¹)

    the evidence lower bound of ``N(w*, Λ⁻¹)``, the posterior that predictions are made with. Laplace's evidence takes
    the expected likelihood at second order, ``log p(y | h(w*)) - ½ γ``. For Gaussian noise that is exact and both are
    the evidence. A trained classifier is certain of its data: its output Hessian there is next to nothing, Laplace's
    evidence takes the loss to be flat, and asks for far too weak a prior. The expectation sees where it is not.

    It judges the linear model, trained anew, while predictions have the network's own outputs for their mean: a network
    that is calibrated as it is may become less so.

    It begins at the prior's precisions or, where the evidence is exact, at thirty times those of the largest evidence
    at the trained weights, group by group, whatever the prior's. From there half a decade uphill, and again, then the
    vertex of the parabola through the best three points. For Gaussian noise this is ``EM``, which has the same maximum:
    it chooses every group's precision and the noise, and takes no ``examples``.

    Args:
        target: Tangent model: ``"simplified"``, or ``"affine"`` with the network's outputs as an offset. ``None`` for
            the first where outputs have no noise of their own and the last layer is linear and uncertain, so that its
            weights alone can make them; else for the second.
        examples: Training examples on which the expectation is taken, evenly over the labels; they stand for all.
        samples: Draws, where a posterior is known by solves; of a sampled posterior its own first, at most so many.
        steps: Most precisions tried.
        solver: Finds modes and draws; ``None`` for the posterior's own, or ``CG`` with its curvature.
        data: The training data, for a posterior from a file.
        unpack: Splits one element of them into inputs and targets.
        seed: Of the draws that are not the posterior's.

    Raises:
        ConfigError: If an option makes no sense.

    Cost:
        A precision tried: a mode, and predictions at ``examples`` inputs; by draws a block solve, and a product with
        the Jacobian there. Memory, by draws: those of the first precision, of the last two and of the best, d numbers
        a draw each, whatever ``steps``.

    Example:
        >>> import torch
        >>> import lapwing as lw
        >>> x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
        >>> posterior = lw.Laplace(lw.Categorical()).fit(torch.nn.Linear(2, 2), (x, (x[:, 0] > 0).long()))
        >>> lw.tune(posterior, ELBO()).prior.precision > 0
        True
    """

    target: Target | None = None
    examples: int = 500
    samples: int = 16
    steps: int = 20
    solver: Solver | None = None
    data: Source | None = field(default=None, compare=False, repr=False)
    unpack: Unpack | None = field(default=None, compare=False, repr=False)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.target is not None:
            check_option("target", self.target, get_args(Target))
        for name in ("examples", "samples", "steps"):
            check_count(name, getattr(self, name))
        check_count("seed", self.seed, 0)
        check_kind("solver=", self.solver, (Solver, type(None)), "CG() or SGD()")

    def tune(self, posterior: P, progress: bool | None) -> P:
        """The posterior of largest bound.

        Args:
            posterior: The posterior.
            progress: Whether to show a progress bar; ``None`` for after two seconds, in a terminal or notebook.

        Raises:
            MismatchError: If the data are not those of the fit.
            UnsupportedError: If the posterior lacks its training data, or knows neither its evidence nor a solver.

        Warns:
            ConvergenceWarning: If the bound still grew after ``steps`` precisions, or the last mode was not found.
        """
        posterior.prior.check_centred(f"{type(self).__name__}(), whose linear model is trained anew")
        if self.data is not None:
            posterior = posterior.with_training_data(self.data, self.unpack)
        if posterior.fitted.noise is not None:
            return self._em.tune(posterior, progress)
        target = natural_target(posterior) if self.target is None else self.target
        expectation = Expectation[Posterior](posterior, target, self.solver, self.samples, "auto", RTOL, self.seed)
        with Bar("ELBO", most=self.steps, unit="precisions", progress=progress) as bar:
            search = BoundSearch(expectation, self.examples, self.seed, bar)
            try:
                best = search.run(self.steps)
            except KeyboardInterrupt:
                if search.best is None:
                    raise
                best = search.best
                said = f"interrupted after {len(search.trace)} precisions: the best of them is taken"
                warn(said, ConvergenceWarning)
        warn_unless_found(best.found.mode, expectation.solver_used)
        there = Hyperparameters(best.found.state.precisions, posterior.scale)
        trace = (*search.trace, best.step(posterior))
        return result_of(posterior, there, trace, best.found.state.draws, with_noise=False)

    def noise_rule(self) -> NoiseRule | None:
        """See ``EM.noise_rule``."""
        return self._em.noise_rule()

    @property
    def _em(self) -> EM:
        """What takes its place for Gaussian noise, with the target that is natural there."""
        target = self.target or "affine"
        return EM(samples=self.samples, steps=self.steps, target=target, solver=self.solver, seed=self.seed)


def natural_target(posterior: Posterior) -> Target:
    """Simplified where outputs have no noise of their own and the last layer is linear and uncertain, else affine."""
    network = posterior.network
    data = posterior.training.data
    if isinstance(posterior.fitted, Gaussian | HeteroscedasticGaussian):
        return "affine"
    if not network.tied:  # the last layer, by a name of its own
        return "simplified"
    try:
        head = last_layer(network.whole, data)
    except ConfigError:
        return "affine"
    return "simplified" if network.index is None and set(head) <= set(network.names) else "affine"


@final
@dataclass(frozen=True, eq=False)
class BoundPoint:
    """The bound at some precisions.

    Args:
        log_factor: Logarithm of the precisions over those of the start.
        bound: L, nats; without an exact evidence up to a constant.
        charge: ``log det(I + A⁻¹ G)``, up to the same.
        found: What expectation says there.
    """

    log_factor: float
    bound: float
    charge: float
    found: Expected

    def step(self, posterior: Posterior) -> Step:
        """What it leaves in the trace."""
        return replace(self.found.step(posterior), bound=self.bound)


@final
@dataclass(eq=False)
class BoundSearch:
    """The way up: of the precisions tried it keeps the bounds and the steps, and of the best alone mode and draws.

    Args:
        expectation: Modes, draws and effective dimensions.
        examples: Training examples on which the expected likelihood is taken.
        seed: Of the draws of outputs.
        bar: A progress bar.
        best: What was tried and has the largest bound.
        bounds: The bound at each precision tried, by its log factor, in order.
        trace: The step that each leaves.
        outputs: Draws of the outputs of each example.
        max_bytes: Bytes these may take, with what their losses take, or those of one example.
    """

    expectation: Expectation[Posterior]
    examples: int
    seed: int
    bar: Bar
    best: BoundPoint | None = None
    bounds: dict[float, float] = field(default_factory=dict)
    trace: list[Step] = field(default_factory=list)
    outputs: int = OUTPUTS
    max_bytes: int = BYTES

    def run(self, steps: int) -> BoundPoint:
        """The largest bound.

        Args:
            steps: Most precisions tried.
        """
        self.expectation.prepare()
        first = self.attempt(0.0, None)
        if not self._walk(first, STRIDE, steps):
            self._walk(first, -STRIDE, steps)
        best = self._best()
        if len(self.trace) >= steps and best.log_factor == list(self.bounds)[-1]:
            warn(
                f"the evidence lower bound was still growing after {steps} precisions. Try a prior nearer to "
                f"{best.found.state.precisions.tolist()[:3]}, or a larger steps=",
                ConvergenceWarning,
            )
        top = vertex((place, -bound) for place, bound in self.bounds.items())
        if top is not None:
            self.attempt(top[0], best)
        return self._best()

    def _best(self) -> BoundPoint:
        assert self.best is not None
        return self.best

    def _walk(self, first: BoundPoint, stride: float, steps: int) -> bool:
        """Go on from the first point while the bound grows; to weaker priors, where it is flat too. Whether it did."""
        here = first
        while len(self.trace) < steps:
            there = self.attempt(here.log_factor + stride, here)
            grown = there.bound - here.bound
            if grown < -LITTLE or (grown < LITTLE and stride > 0):
                break
            here = there
        return here is not first

    def attempt(self, log_factor: float, near: BoundPoint | None) -> BoundPoint:
        """The bound at other precisions, the solves started from those of a point nearby.

            L = -Σ_i ℓ(y_i, h(w*)) - excess - ½ (|w*|²_A + log det(I + A⁻¹ G) - γ)

        Args:
            log_factor: Logarithm of the precisions over those of the start.
            near: The point; ``None`` for the start itself.
        """
        state = self._start if near is None else near.found.state
        precisions = (self._start.precisions * math.exp(log_factor)).clamp(*BOUNDS)
        found = self.expectation.expect(replace(state, precisions=precisions))
        self.bar.check()
        charge = self._charge(found, log_factor, near)
        norm = float((precisions * found.norms).sum())
        complexity = 0.5 * (norm + charge - found.gamma)
        bound = finite_evidence(-found.mode.nll - self._excess(found) - complexity, "lower bound on the log evidence")
        logger.debug("ELBO %.6g at %s, complexity %.4g", bound, precisions, complexity)
        there = BoundPoint(log_factor, bound, charge, found)
        if self.best is None or bound > self.best.bound:
            self.best = there
        self.bounds[log_factor] = bound
        self.trace.append(there.step(self.expectation.posterior))
        self.bar.update()
        return there

    @cached_property
    def _start(self) -> State:
        """Where to begin: at the precisions there are, or where the evidence at the trained weights points to.

        Where these are certain it has no maximum: not below MacKay's ``γ / |θ̃_g|²`` of a single direction.
        """
        state = self.expectation.first()
        evidence = self.expectation.posterior.evidence
        if evidence is None:
            return state
        *_, top = climb(evidence, state.hyperparameters, with_noise=False, steps=100)
        of_one_direction = 1 / evidence.square_norms.clamp_min(1 / BOUNDS[1])
        precisions = HEAD_START * top.hyperparameters.precisions.maximum(of_one_direction)
        return replace(state, precisions=precisions.clamp(*BOUNDS))

    def _charge(self, found: Expected, log_factor: float, near: BoundPoint | None) -> float:
        """``log det(I + A⁻¹ G)``: exact, or along the way from another point the integral of -γ.

        Between two points γ is taken for an exponential of the log factor, whose mean is ``(γ - γ') / log(γ / γ')``.
        """
        if found.evidence is not None:
            with torch.no_grad():
                return float(found.evidence.complexity.log_det_ratio(found.state.precisions, found.state.scale))
        if near is None:
            return 0.0
        here = found.gamma
        there = near.found.gamma
        ratio = math.log(here / there)
        mean = (here - there) / ratio if abs(ratio) > 1e-6 else here
        return near.charge - mean * (log_factor - near.log_factor)

    @cached_property
    def _weighted_examples(self) -> list[WeightedExamples]:
        """Examples that stand for all, with the weight of each."""
        return balanced_by_shape(self.expectation.tangent.training.data, self.examples)

    def _excess(self, found: Expected) -> float:
        """What the expected loss of all examples is above that at w*, nats; some examples at a time."""
        model = self.expectation.posterior.model
        each = self.outputs * model.width * DRAWN
        generator = torch.Generator(model.network.like.device).manual_seed(self.seed)
        total = 0.0
        with torch.no_grad():
            for inputs, targets, weights in self._weighted_examples:
                for place, part in chunks(inputs, max(1, self.max_bytes // each)):
                    excess = self._excess_of(found, part, targets[place], generator)
                    total += float(excess @ weights[place].to(excess))
        return total

    def _excess_of(
        self, found: Expected, inputs: Inputs, targets: Tensor, generator: torch.Generator
    ) -> Float[Tensor, " n"]:
        """The same of each of some examples, by draws of their outputs."""
        tangent = self.expectation.tangent
        likelihood = tangent.training.likelihood
        h = tangent.outputs(inputs, found.mode.weights)
        y = likelihood.canonical_targets(h, targets)
        outputs = replace(self._outputs(found, inputs), mean=h).sample(self.outputs, generator=generator)
        losses = torch.stack([likelihood.nll(wide(draw), y) for draw in outputs]).mean(0)
        excess = losses - likelihood.nll(wide(h), y)
        return excess.view(len(targets), -1).sum(1)

    def _outputs(self, found: Expected, inputs: Inputs) -> Moments | WideMoments:
        """Outputs with the covariance ``J Λ⁻¹ Jᵀ`` of each example, in the precision of the network."""
        posterior = self.expectation.posterior
        state = found.state
        if state.draws is None:
            there = with_hyperparameters(posterior, state.hyperparameters)
            return posterior.outputs_each(inputs, [there])[0]
        draws = self.expectation.prior(state).inverse_root() @ state.draws
        mean, moved = posterior.pushed(inputs, draws)
        return FactorMoments(mean, moved / draws.shape[1] ** 0.5)
