"""The lower bound at one prior precision after another, uphill."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm

from lapwing.ground.errors import ConvergenceWarning, warn
from lapwing.ground.types import Inputs
from lapwing.linear.preconditioners import balanced
from lapwing.posteriors import ExactPosterior, Posterior, Step
from lapwing.predictive import Moments
from lapwing.tuning.ascent import climb
from lapwing.tuning.checkpoint import State
from lapwing.tuning.choices import BOUNDS, chosen
from lapwing.tuning.expectation import Expectation, Expected
from lapwing.tuning.search import vertex

logger = logging.getLogger(__name__)

STRIDE = math.log(10) / 2
"""Steps in the logarithm of the precisions: half a decade."""

LITTLE = 0.01
"""Nats that a bound must grow by: with ever stronger priors it may grow for ever, to no effect."""

HEAD_START = 30.0
"""Precisions of largest evidence at the trained weights are too small by about so much, or more."""

OUTPUTS = 64
"""Draws of the outputs of each example."""


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
        return replace(self.found.step(posterior, None), bound=self.bound)


@final
@dataclass(eq=False)
class Trail:
    """The precisions tried, in order: the step that each leaves, and of the best alone the mode and the draws.

    Args:
        best: The one of largest bound.
        bounds: The bound of each, by its log factor.
        steps: What they leave in the trace.
    """

    best: Tried
    bounds: dict[float, float]
    steps: list[Step]

    def add(self, point: Tried, posterior: Posterior) -> None:
        """Take in one more."""
        if point.bound > self.best.bound:
            self.best = point
        self.bounds[point.log_factor] = point.bound
        self.steps.append(point.step(posterior))


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

    def run(self) -> Trail:
        """All precisions tried."""
        self.expectation.prepare()
        first, posterior = self.at(0.0, None), self.expectation.posterior
        trail = Trail(first, {0.0: first.bound}, [first.step(posterior)])
        if not self._walk(trail, first, STRIDE):
            self._walk(trail, first, -STRIDE)
        best = trail.best
        if len(trail.steps) >= self.steps and best.log_factor == list(trail.bounds)[-1]:
            warn(
                f"the evidence lower bound was still growing after {self.steps} precisions. Try a prior nearer to "
                f"{best.found.precisions.tolist()[:3]}, or a larger steps=",
                ConvergenceWarning,
            )
        top = vertex((place, -bound) for place, bound in trail.bounds.items())
        if top is not None:
            trail.add(self.at(top[0], best), posterior)
        return trail

    def _walk(self, trail: Trail, first: Tried, stride: float) -> bool:
        """Go on from the first point while the bound grows; to weaker priors, where it is flat too. Whether it did."""
        here = first
        while len(trail.steps) < self.steps:
            there = self.at(here.log_factor + stride, here)
            trail.add(there, self.expectation.posterior)
            grown = there.bound - here.bound
            if grown < -LITTLE or (grown < LITTLE and stride > 0):
                break
            here = there
        return here is not first

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
        """Where to begin: at the precisions there are, or where the evidence at the trained weights points to.

        Where these are certain it has no maximum: not below MacKay's ``γ / |θ̃_g|²`` of a single direction.
        """
        state, posterior = self.expectation.first(), self.expectation.posterior
        if not isinstance(posterior, ExactPosterior):
            return state
        *_, best = climb(posterior.evidence, state.precisions, state.scale, noisy=False, steps=100)
        of_one_direction = 1 / posterior.evidence.square_norms.clamp_min(1 / BOUNDS[1])
        return replace(state, precisions=(HEAD_START * best.precisions.maximum(of_one_direction)).clamp(*BOUNDS))

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
    def _chosen(self) -> tuple[Inputs, Tensor, Float[Tensor, " n"]]:
        return balanced(self.expectation.tangent.training.data, self.examples)

    def _excess(self, found: Expected, state: State) -> float:
        """What the expected loss of all examples is above that at w*, nats."""
        tangent, (inputs, targets, weights) = self.expectation.tangent, self._chosen
        likelihood = tangent.training.likelihood
        with torch.no_grad():
            h = tangent.outputs(inputs, found.mode.weights)
            y = likelihood.canonical_targets(h, targets)
            generator = torch.Generator(h.device).manual_seed(self.seed)
            outputs = Moments(h.double(), self._covariance(found, state, inputs)).sample(OUTPUTS, generator=generator)
            losses = torch.stack([likelihood.nll(draw, y).double() for draw in outputs]).mean(0)
            excess = losses - likelihood.nll(h.double(), y)
            return float(excess.view(len(targets), -1).sum(1) @ weights.to(excess))

    def _covariance(self, found: Expected, state: State, inputs: Inputs) -> Float[Tensor, "n *event c c"]:
        """``J Λ⁻¹ Jᵀ`` of each example, float64."""
        posterior = self.expectation.posterior
        if isinstance(posterior, ExactPosterior):
            choice = chosen(posterior, found.precisions, found.scale, ())
            return posterior.outputs_each(inputs, [choice])[0].covariance.double()
        draws = self.expectation.drawn(state)
        moved = posterior.pushed(inputs, draws)[1].double()
        return moved @ moved.mT / draws.shape[1]
