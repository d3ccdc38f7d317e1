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
from tqdm.auto import tqdm

from lapwing.ascent import BOUNDS, climb
from lapwing.curvature.network import Network
from lapwing.data import Source
from lapwing.errors import ConfigError, ConvergenceWarning, check_count, check_kind, check_option, warn
from lapwing.likelihoods import Gaussian, HeteroscedasticGaussian
from lapwing.posteriors import ExactPosterior, Posterior, Step
from lapwing.posteriors.pushed import pushed
from lapwing.precondition import balanced
from lapwing.predictive import Moments
from lapwing.selection import last_layer
from lapwing.solvers import Solver
from lapwing.tangent import Tangent, Target
from lapwing.tuning.checkpoint import State
from lapwing.tuning.choices import P, chosen
from lapwing.tuning.dimensions import LEAST
from lapwing.tuning.em import EM
from lapwing.tuning.expectation import Expectation, training_of, with_data
from lapwing.tuning.maximisation import Expected
from lapwing.types import Inputs, Unpack

logger = logging.getLogger(__name__)

STRIDE = math.log(10) / 2
"""Steps in the logarithm of the precisions: half a decade."""

HEAD_START = 30.0
"""Precisions of largest evidence at the trained weights are too small by about so much, or more."""

OUTPUTS = 64
"""Draws of the outputs of each example."""

RTOL = 0.03
"""Relative gradient at which a mode is found: the bound moves by far less."""


@final
@dataclass(frozen=True)
class ELBO:
    """Maximises a lower bound on the evidence of the tangent model, over one factor for all prior precisions.

        L = E[log p(y | h(w*) + J ζ)] - ½ (|w*|²_A + log det(I + A⁻¹ G) - γ),      ζ ~ N(0, Λ⁻¹)

    the evidence lower bound of ``N(w*, Λ⁻¹)``, the posterior that predictions are made with. Laplace's evidence takes
    the expected likelihood at second order, ``log p(y | h(w*)) - ½ γ``. For Gaussian noise that is exact and both are
    the evidence. A trained classifier is certain of its data: its output Hessian there is next to nothing, Laplace's
    evidence takes the loss to be flat, and asks for far too weak a prior. The expectation sees where it is not.

    It judges the linear model, trained anew, while predictions have the network's own outputs for their mean: a network
    that is calibrated as it is may become less so.

    From one precision to the next half a decade uphill, then the vertex of the parabola through the best three points.
    For Gaussian noise this is ``EM``, which has the same maximum.

    Args:
        target: Tangent model: ``"simplified"``, or ``"affine"`` with the network's outputs as an offset. ``None`` for
            the first where outputs have no noise of their own and the last layer is linear and uncertain, so that its
            weights alone can make them; else for the second.
        examples: Training examples on which the expectation is taken, evenly over the labels; they stand for all.
        samples: Draws, where a posterior is known by solves; those of a sampled posterior have the noise of its own.
        steps: Most precisions tried.
        solver: Finds modes and draws; ``None`` for the posterior's own, or ``CG`` with its curvature.
        data: The training data, for a posterior from a file.
        unpack: Splits one element of them into inputs and targets.
        seed: Of the draws that are not the posterior's.

    Raises:
        ConfigError: If an option makes no sense.

    Cost:
        A precision tried: a mode, and predictions at ``examples`` inputs; by draws a block solve, and a product with
        the Jacobian there.

    Example:
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
        check_kind("solver=", self.solver, (Solver, type(None)), "CG() or SGD()")

    def tune(self, posterior: P, progress: bool) -> P:
        """The posterior of largest bound.

        Args:
            posterior: The posterior.
            progress: Whether to show a progress bar.

        Raises:
            MismatchError: If the data are not those of the fit.
            UnsupportedError: If the posterior lacks its training data, or knows neither its evidence nor a solver.

        Warns:
            ConvergenceWarning: If the bound still grew after ``steps`` precisions.
        """
        posterior = with_data(posterior, self.data, self.unpack)
        target = natural_target(posterior) if self.target is None else self.target
        if isinstance(posterior.fitted, Gaussian):
            method = EM(samples=self.samples, steps=self.steps, target=target, solver=self.solver, seed=self.seed)
            return method.tune(posterior, progress)
        tangent = Tangent(training_of(posterior), target)
        expectation = Expectation(posterior, tangent, self.solver, self.samples, "auto", RTOL, self.seed)
        with tqdm(desc="ELBO", total=self.steps, disable=not progress, unit="precision", leave=False) as bar:
            tried = Climb(expectation, self.examples, self.seed, self.steps, bar).run()
        best = max(tried, key=lambda point: point.bound)
        steps = [point.step(posterior) for point in tried]
        trace = (*steps, best.step(posterior))
        return chosen(posterior, best.found.precisions, posterior.scale, trace, best.state.draws)


def natural_target(posterior: Posterior) -> Target:
    """Simplified where outputs have no noise of their own and the last layer is linear and uncertain, else affine."""
    network, data = posterior.network, posterior.training.data
    if isinstance(posterior.fitted, Gaussian | HeteroscedasticGaussian):
        return "affine"
    whole = Network(network.module, tuple(name for name, _ in network.module.named_parameters()))
    try:
        head = last_layer(whole, data)
    except ConfigError:
        return "affine"
    return "simplified" if network.index is None and set(head) <= set(network.names) else "affine"


@final
@dataclass(frozen=True, eq=False)
class Tried:
    """The bound at some precisions.

    Args:
        log_factor: Logarithm of the precisions over those of the start.
        bound: L, nats; without an exact evidence up to a constant.
        charge: ``log det(I + A⁻¹ G)``, up to the same.
        found: What expectation says there.
        state: Where a search goes on from.
    """

    log_factor: float
    bound: float
    charge: float
    found: Expected
    state: State

    def step(self, posterior: Posterior) -> Step:
        """What it leaves in the trace."""
        return self.found.step(posterior, self.bound if isinstance(posterior, ExactPosterior) else None)


@final
@dataclass(frozen=True, eq=False)
class Climb:
    """The way up.

    Args:
        expectation: Modes, draws and effective dimensions.
        examples: Training examples on which the expected likelihood is taken.
        seed: Of the draws of outputs.
        steps: Most precisions tried.
        bar: A progress bar.
    """

    expectation: Expectation
    examples: int
    seed: int
    steps: int
    bar: tqdm

    def run(self) -> list[Tried]:
        """All precisions tried, in order."""
        self.expectation.prepare()
        points = [self.at(0.0, None)]
        if not self._walk(points, STRIDE):
            self._walk(points, -STRIDE)
        best = max(points, key=lambda point: point.bound)
        if len(points) >= self.steps and best is points[-1]:
            warn(
                f"the evidence lower bound was still growing after {self.steps} precisions. Try a prior nearer to "
                f"{best.found.precisions.tolist()[:3]}, or a larger steps=",
                ConvergenceWarning,
            )
        around = {round((point.log_factor - best.log_factor) / STRIDE): point.bound for point in points}
        if -1 in around and 1 in around:
            slope, bend = (around[1] - around[-1]) / 2, around[1] - 2 * around[0] + around[-1]
            if bend < 0:
                points.append(self.at(best.log_factor - STRIDE * slope / bend, best))
        return points

    def _walk(self, points: list[Tried], stride: float) -> bool:
        """Go on from the first point while the bound grows, and the data determine something; whether it grew."""
        here = points[0]
        while len(points) < self.steps and (stride < 0 or here.found.gamma > 2 * LEAST):
            points.append(self.at(here.log_factor + stride, here))
            if points[-1].bound <= here.bound:
                break
            here = points[-1]
        return here is not points[0]

    def at(self, log_factor: float, near: Tried | None) -> Tried:
        """The bound, its solves started from those of a point nearby."""
        start = self._start if near is None else near.state
        precisions = (self._start.precisions * math.exp(log_factor)).clamp(*BOUNDS)
        found, state, _ = self.expectation.at(replace(start, precisions=precisions))
        charge = self._charge(found, log_factor, near)
        complexity = 0.5 * (float((found.precisions * found.norms).sum()) + charge - found.gamma)
        loss = found.mode.nll + self._excess(found, state)
        logger.debug("ELBO %.6g at %s: loss %.4g, complexity %.4g", -loss - complexity, precisions, loss, complexity)
        self.bar.update()
        return Tried(log_factor, -loss - complexity, charge, found, state)

    @cached_property
    def _start(self) -> State:
        """Where to begin: at the precisions there are, or where the evidence at the trained weights points to."""
        state, posterior = self.expectation.first(), self.expectation.posterior
        if not isinstance(posterior, ExactPosterior):
            return state
        *_, best = climb(posterior.evidence, state.precisions, state.scale, noisy=False, steps=100)
        return replace(state, precisions=(HEAD_START * best.precisions).clamp(*BOUNDS))

    def _charge(self, found: Expected, log_factor: float, near: Tried | None) -> float:
        """``log det(I + A⁻¹ G)``: exact, or along the way from another point the integral of -γ."""
        if found.evidence is not None:
            with torch.no_grad():
                return float(found.evidence.complexity.log_det_ratio(found.precisions, found.scale))
        if near is None:
            return 0.0
        here, there = found.gamma, near.found.gamma
        ratio = math.log(here / there)
        mean = (here - there) / ratio if abs(ratio) > 1e-6 else here
        return near.charge - mean * (log_factor - near.log_factor)

    @cached_property
    def _chosen(self) -> tuple[Inputs, Tensor]:
        return balanced(self.expectation.tangent.training, self.examples)

    def _excess(self, found: Expected, state: State) -> float:
        """What the expected loss of all examples is above that at w*, nats."""
        tangent, (inputs, targets) = self.expectation.tangent, self._chosen
        likelihood = tangent.training.likelihood
        with torch.no_grad():
            h = tangent.outputs(inputs, found.mode.weights)
            y = likelihood.canonical_targets(h, targets)
            generator = torch.Generator(h.device).manual_seed(self.seed)
            outputs = Moments(h.double(), self._covariance(found, state, inputs)).sample(OUTPUTS, generator=generator)
            losses = torch.stack([likelihood.nll(draw, y).double().sum() for draw in outputs]).mean()
            excess = losses - likelihood.nll(h.double(), y).sum()
        return float(excess) * tangent.training.examples / len(targets)

    def _covariance(self, found: Expected, state: State, inputs: Inputs) -> Float[Tensor, "n *event c c"]:
        """``J Λ⁻¹ Jᵀ`` of each example, float64."""
        posterior = self.expectation.posterior
        if isinstance(posterior, ExactPosterior):
            choice = chosen(posterior, found.precisions, found.scale, ())
            return posterior.outputs_each(inputs, [choice])[0].covariance.double()
        training, draws = self.expectation.tangent.training, self.expectation.drawn(state)
        moved = pushed(training.network, training.survey, training.likelihood, inputs, draws)[1].double()
        return moved @ moved.mT / draws.shape[1]
