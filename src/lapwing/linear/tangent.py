"""The convex model that a linear model is: its outputs, the gradient of its loss, Newton's matrix, and its mode."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import final, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data import checked
from lapwing.ground.errors import ShapeError, check_count, check_kind, check_option, check_positive
from lapwing.ground.results import Ended, Stopped
from lapwing.ground.types import Inputs
from lapwing.linalg import Diagonal
from lapwing.linear.loss import Points, TangentLoss, Target
from lapwing.linear.model import LinearModel
from lapwing.linear.problem import Problem
from lapwing.linear.solvers import CG, SGD, Solver
from lapwing.linear.solvers.newton import Minimum, minimise
from lapwing.linear.solvers.stochastic import descend_loss, descend_quadratic
from lapwing.priors import Prior


@final
@dataclass(frozen=True, eq=False)
class Mode(Ended):
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


@final
@dataclass(frozen=True, eq=False)
class Tangent:
    """The tangent model ``h(w, x) = f(x) + J(x) (w - w̃)`` of a network with trained weights w̃.

    Its loss is convex in w for the likelihoods whose output is their natural parameter, and has the gradient of the
    network's loss at w̃ (Antorán 2024, section 5.2). ``"simplified"`` leaves out the offset: ``h(w, x) = J(x) w``, the
    same for a network all of whose weights but those of its linear head are normalised (section 5.4.1).

    Args:
        training: A network made linear, with its data, as ``posterior.training``; or any linear model.
        target: ``"affine"`` or ``"simplified"``.

    Raises:
        ConfigError: If the target is neither, or the training none.

    Example:
        >>> import lapwing as lw
        >>> model, x, y = torch.nn.Linear(2, 1), torch.randn(30, 2), torch.randn(30, 1)
        >>> tangent = Tangent(lw.Laplace(lw.Gaussian()).fit(model, (x, y)).training)
        >>> tangent.mode(lw.Isotropic(1.0)).converged
        True
    """

    training: LinearModel
    target: Target = "affine"

    def __post_init__(self) -> None:
        check_kind("the training", self.training, (LinearModel,), "Tangent(posterior.training)")
        check_option("target", self.target, get_args(Target))

    @cached_property
    def _points(self) -> Points:
        return Points(self.training, self.target)

    def outputs(self, inputs: Inputs, weights: Float[Tensor, " d"]) -> Float[Tensor, "n *event c"]:
        """Canonical outputs ``h(w, x)``.

        Args:
            inputs: Inputs of n examples, as the network takes them.
            weights: w.

        Cost:
            A forward pass, and a product with J.
        """
        w = self._points.checked(weights)
        chunk = self.training.at(checked(inputs, w))
        with torch.no_grad():
            return chunk.at(w - self.training.weights if self._points.affine else w, self._points.affine)

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
        with torch.no_grad():
            return self._points.score(self._points.checked(weights))

    def problem(self, weights: Float[Tensor, " d"], prior: Diagonal, scale: float = 1.0) -> Problem:
        """``Λ = s G + A`` with J at the trained weights and the output Hessian B at ``h(w, ·)``: Newton's matrix.

        Approximations of G that preconditioners make are shared by all these problems.

        Args:
            weights: w.
            prior: A.
            scale: s.
        """
        return self._points.problem(self._points.checked(weights), prior, scale)

    def mode(
        self,
        prior: Diagonal | Prior,
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
            prior: The prior, or A as an operator; it is centred at 0.
            scale: s, the noise precision relative to the fitted one.
            solver: What solves with the Newton matrix; ``None`` for ``CG()``. An ``SGD`` descends by mini-batches.
            initial: Where to start; ``None`` for the best point between the trained weights and 0.
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
        model, like = self.training, self.training.weights
        solver = CG() if solver is None else solver
        check_kind("solver=", solver, (Solver,), "CG() or SGD()")
        check_positive("scale", scale)
        start = None if initial is None else self._points.checked(initial)
        check_kind("the prior", prior, (Diagonal, Prior), "posterior.prior, or Isotropic(1.0)")
        diagonal = prior.diagonal(model.layout, like) if isinstance(prior, Prior) else prior.values
        prior = Diagonal(diagonal.to(like))
        if prior.shape != (len(like), len(like)):
            hint = "posterior.prior, or Isotropic(1.0)"
            raise ShapeError(f"a prior of {len(like)} weights", f"{prior!r}", hint)
        if rtol is None:
            rtol = solver.rtol if isinstance(solver, SGD) else 1e-6 if like.dtype == torch.float64 else 1e-4
        check_positive("rtol", rtol)
        check_count("steps", steps)
        with torch.no_grad():
            found = self._found(prior, scale, solver, start, rtol, steps, progress)
        nll, misfit = found.point.told
        return Mode(found.point.weights, nll, misfit, found.gradient, found.iterations, found.matvecs, found.stopped)

    def _found(
        self,
        prior: Diagonal,
        scale: float,
        solver: Solver,
        start: Tensor | None,
        rtol: float,
        steps: int,
        progress: bool,
    ) -> Minimum:
        """The minimum, by Newton's method or descent."""
        self._points.forget()
        loss = TangentLoss(self._points, prior, scale)
        first = loss.lowest() if start is None else loss.evaluate(start)
        if not isinstance(solver, SGD):
            found = minimise(loss, first, prior, solver, rtol=rtol, steps=steps, progress=progress)
        elif self.training.likelihood.noise is not None:
            found = descend_quadratic(loss, first, prior, solver, rtol=rtol)
        else:
            found = descend_loss(loss, loss.batches, first, prior, solver, rtol=rtol, progress=progress)
        return replace(found, matvecs=found.matvecs + (2 if start is None else 1))
