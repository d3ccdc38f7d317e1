"""The network made linear in its weights: a convex model with a mode of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, TypeAlias, final, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.hessian import GGNProduct
from lapwing.curvature.jacobian import BatchJacobian
from lapwing.curvature.linear import Linear
from lapwing.data import check_inputs, place
from lapwing.errors import ShapeError, check_count, check_kind, check_option, check_positive
from lapwing.likelihoods import Gaussian
from lapwing.linalg import Diagonal, Structured
from lapwing.problem import Problem, Training
from lapwing.results import Stopped
from lapwing.solvers import CG, SGD, Solver
from lapwing.solvers.newton import Minimum, Point, minimise, solve_quadratic
from lapwing.solvers.stochastic import Piece, descend_loss
from lapwing.types import Inputs

Target: TypeAlias = Literal["affine", "simplified"]
"""Whether the tangent model has the network's outputs at its trained weights as an offset."""


@final
@dataclass(frozen=True, eq=False)
class Mode:
    """The mode w* of the tangent model.

    Args:
        weights: w*.
        nll: Negative log likelihood of all targets at h(w*, ·), by the fitted likelihood, nats.
        misfit: For Gaussian noise the squared error at h(w*, ·), weighted by the fitted noise precision; 0 for others.
        gradient: ``|A^-½ ∇| / |w|_A`` with ∇ the gradient of the objective: with a convex loss w* is at most this far
            from the mode, in units of its own length in the norm of the prior.
        iterations: Newton steps, or steps of the descent.
        matvecs: Columns multiplied by the curvature, and gradients over all data.
        stopped: Why the iteration ended.
    """

    weights: Float[Tensor, " d"]
    nll: float
    misfit: float
    gradient: float
    iterations: int
    matvecs: int
    stopped: Stopped

    @property
    def converged(self) -> bool:
        """Whether the gradient met its tolerance."""
        return self.stopped == "converged"


@final
@dataclass(frozen=True, eq=False)
class Tangent:
    """The tangent model ``h(w, x) = f(x) + J(x) (w - w̃)`` of a network with trained weights w̃.

    Its loss is convex in w for the likelihoods whose output is their natural parameter, and has the gradient of the
    network's loss at w̃ (Antorán 2024, section 5.2). ``"simplified"`` leaves out the offset: ``h(w, x) = J(x) w``, the
    same for a network all of whose weights but those of its linear head are normalised (section 5.4.1).

    Args:
        training: The network and its data.
        target: ``"affine"`` or ``"simplified"``.

    Raises:
        ConfigError: If the target is neither.

    Example:
        >>> import lapwing as lw
        >>> from lapwing.linalg import Diagonal
        >>> model, x, y = torch.nn.Linear(2, 1), torch.randn(30, 2), torch.randn(30, 1)
        >>> tangent = Tangent(lw.Laplace(lw.Gaussian()).fit(model, (x, y)).training)
        >>> tangent.mode(Diagonal(torch.ones(3))).converged
        True
    """

    training: Training
    target: Target = "affine"
    _last: list[tuple[Tensor, GGNProduct]] = field(default_factory=list, init=False, repr=False)
    _kept: dict[object, Structured] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        check_option("target", self.target, get_args(Target))

    def outputs(self, inputs: Inputs, weights: Float[Tensor, " d"]) -> Float[Tensor, "n *event c"]:
        """Canonical outputs ``h(w, x)``.

        Args:
            inputs: Inputs of n examples, as the network takes them.
            weights: w.

        Cost:
            A forward pass, and a product with J.
        """
        inputs = place(inputs, self.training.network.like)
        check_inputs(inputs)
        training, w = self.training, self._checked(weights)
        jacobian = BatchJacobian(training.network, training.survey, training.likelihood, inputs)
        with torch.no_grad():
            f = training.likelihood.canonical(training.network(inputs))
            if self.target == "simplified":
                return jacobian.push(w[:, None]).view(f.shape)
            return f + jacobian.push((w - training.network.weights)[:, None]).view(f.shape)

    def score(self, weights: Float[Tensor, " d"]) -> tuple[Float[Tensor, " d"], float, float]:
        """Gradient of the log likelihood at ``h(w, ·)``, the negative log likelihood there, and the misfit.

        Args:
            weights: w.

        Returns:
            ``Σ_i J_iᵀ ∇_h log p(y_i | h_i)``; ``-Σ_i log p(y_i | h_i)`` in nats, and for Gaussian noise
            ``Σ_i |y_i - h_i|²`` weighted by the noise precision, else 0; all with the fitted likelihood.

        Raises:
            DataError: If inputs or outputs are not finite, or targets do not fit the likelihood.

        Cost:
            One pass over the data: a forward pass, a product with J and one with Jᵀ.
        """
        likelihood, w = self.training.likelihood, self._checked(weights)
        total, nll, misfit = torch.zeros_like(w), 0.0, 0.0
        with torch.no_grad():
            for chunk, h in self._at(w).visit():
                likelihood.check(h, chunk.targets)
                nll += float(likelihood.nll(h, chunk.targets).double().sum())
                if isinstance(likelihood, Gaussian):
                    misfit += float((likelihood.precisions(h) * (chunk.targets - h).square()).double().sum())
                total += chunk.pull(likelihood.score(h, chunk.targets)[None])[:, 0]
        return total, nll, misfit

    def problem(self, weights: Float[Tensor, " d"], prior: Diagonal, scale: float = 1.0) -> Problem:
        """``Λ = s G + A`` with J at the trained weights and the output Hessian B at ``h(w, ·)``: Newton's matrix.

        Approximations of G that preconditioners make are shared by all these problems.

        Args:
            weights: w.
            prior: A.
            scale: s.
        """
        curvature = self._at(self._checked(weights))
        return replace(Problem.of(self.training, prior, scale, curvature=curvature), kept=self._kept)

    def mode(
        self,
        prior: Diagonal,
        scale: float = 1.0,
        *,
        solver: Solver | None = None,
        initial: Float[Tensor, " d"] | None = None,
        rtol: float | None = None,
        steps: int = 50,
        progress: bool = False,
    ) -> Mode:
        """The minimiser of ``s Σ_i ℓ(y_i, h(w, x_i)) + ½ |w|²_A`` (Antorán 2024, section 5.2).

        Args:
            prior: A; the prior is centred at 0.
            scale: s, the noise precision relative to the fitted one.
            solver: What solves with the Newton matrix; ``None`` for ``CG()``. An ``SGD`` descends by mini-batches.
            initial: Where to start; ``None`` for 0.
            rtol: ``Mode.gradient`` at which it is found; ``None`` for 1e-6, in float32 for 1e-4, by descent for that of
                the solver.
            steps: Most Newton steps.
            progress: Whether to show a progress bar.

        Raises:
            ConfigError: If a number is not positive, or the solver is none.
            ShapeError: If the prior or the start has another size than the weights.

        Cost:
            A Newton step: one pass over the data, and a solve to a tolerance that tightens as it converges.
        """
        network = self.training.network
        solver = CG() if solver is None else solver
        check_kind("solver=", solver, (Solver,), "CG() or SGD()")
        check_positive("scale", scale)
        start = torch.zeros_like(network.weights) if initial is None else self._checked(initial)
        if prior.shape != (network.size, network.size):
            hint = "prior.operator(network.uncertain, network.like)"
            raise ShapeError(f"a prior of {network.size} weights", f"{prior!r}", hint)
        if rtol is None:
            rtol = solver.rtol if isinstance(solver, SGD) else 1e-6 if network.like.dtype == torch.float64 else 1e-4
        check_positive("rtol", rtol)
        check_count("steps", steps)
        with torch.no_grad():
            found = self._found(prior, scale, solver, start, rtol, steps, progress)
        nll, misfit = found.point.told
        return Mode(found.point.weights, nll, misfit, found.gradient, found.iterations, found.matvecs, found.stopped)

    def _found(
        self, prior: Diagonal, scale: float, solver: Solver, start: Tensor, rtol: float, steps: int, progress: bool
    ) -> Minimum:
        """The minimum, by Newton's method or descent."""

        def point(w: Tensor) -> Point:
            score, nll, misfit = self.score(w)
            return Point(w, scale * score, scale * (0.5 * misfit if self._noisy else nll), (nll, misfit))

        if isinstance(solver, SGD):
            problem = self.problem(start, prior, scale)
            if self._noisy:
                return solve_quadratic(point, problem, start, solver, rtol=rtol)
            pieces = partial(self._pieces, scale)
            return descend_loss(point, pieces, problem, start, solver, rtol=rtol, progress=progress)
        at = lambda w: self.problem(w, prior, scale)  # noqa: E731
        return minimise(point, at, start, prior, solver, rtol=rtol, steps=steps, progress=progress)

    def _pieces(self, scale: float, generator: torch.Generator) -> Iterator[Piece]:
        """The loss chunk by chunk, in random order where they are kept."""
        likelihood, affine = self.training.likelihood, self.target == "affine"
        offset = self.training.network.weights if affine else 0.0
        for chunk in self.training.curvature.linearisation.visit(shuffled=True, generator=generator):

            def score(w: Tensor, chunk: Linear = chunk) -> Tensor:
                h = chunk.at(w - offset, affine)
                return scale * chunk.pull(likelihood.score(h, chunk.targets)[None])[:, 0]

            yield Piece(score, chunk.examples)

    @property
    def _noisy(self) -> bool:
        return isinstance(self.training.likelihood, Gaussian)

    def _checked(self, weights: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
        self.training.network.check_unchanged()
        like = self.training.network.weights
        if weights.shape != like.shape:
            raise ShapeError(
                f"weights of shape {list(like.shape)}", f"{list(weights.shape)}", "the uncertain weights, flat"
            )
        return weights.to(like)

    def _at(self, weights: Float[Tensor, " d"]) -> GGNProduct:
        """G with B at ``h(w, ·)``; that of the last w is at hand."""
        last = self._last
        if not (last and torch.equal(last[0][0], weights)):
            last[:] = [(weights, self.training.curvature.at(weights, affine=self.target == "affine"))]
        return last[0][1]
