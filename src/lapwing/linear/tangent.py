"""The convex model that a linear model is: its outputs, the gradient of its loss, Newton's matrix, and its mode."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, final, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data.inputs import Inputs, checked
from lapwing.ground.errors import ShapeError, check_count, check_kind, check_option, check_positive
from lapwing.linalg import Diagonal
from lapwing.linear.gauss_newton import GGNProduct, outputs_at
from lapwing.linear.mode.loss import Loss, LossAt, Mode
from lapwing.linear.mode.newton import lowest
from lapwing.linear.model import LinearModel
from lapwing.linear.problem import CachedCurvature, Problem
from lapwing.linear.solvers import CG, Solver
from lapwing.priors import Prior

Target: TypeAlias = Literal["affine", "simplified"]
"""Whether the linear model has its outputs at w̃ as an offset."""


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
    _curvature_cache: dict[object, CachedCurvature] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        check_kind("the training", self.training, (LinearModel,), "Tangent(posterior.training)")
        check_option("target", self.target, get_args(Target))

    def outputs(self, inputs: Inputs, weights: Float[Tensor, " d"]) -> Float[Tensor, "n *event c"]:
        """Canonical outputs ``h(w, x)``.

        Args:
            inputs: Inputs of n examples, as the network takes them.
            weights: w.

        Cost:
            A forward pass, and a product with J.
        """
        w = self._checked(weights)
        with torch.no_grad():
            return outputs_at(self.training.on(checked(inputs, w)), self.training, w, self._affine)

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
            w = self._checked(weights)
            point = LossAt.of(w, GGNProduct(self.training, w, self._affine))
        return point.score, point.nll, point.misfit

    def problem(self, weights: Float[Tensor, " d"], prior: Diagonal, scale: float = 1.0) -> Problem:
        """``Λ = s G + A`` with J at the trained weights and the output Hessian B at ``h(w, ·)``: Newton's matrix.

        Approximations of G that preconditioners make are shared by all these problems.

        Args:
            weights: w.
            prior: A.
            scale: s.
        """
        curvature = GGNProduct(self.training, self._checked(weights), self._affine)
        return Problem(curvature, prior, scale, self._curvature_cache)

    def mode(
        self,
        prior: Diagonal | Prior,
        scale: float = 1.0,
        *,
        solver: Solver | None = None,
        initial: Float[Tensor, " d"] | None = None,
        rtol: float | None = None,
        steps: int = 50,
        progress: bool | None = None,
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
            progress: Whether to show a progress bar; ``None`` for after two seconds, in a terminal or notebook.

        Raises:
            ConfigError: If a number is not positive, or the solver is none.
            ShapeError: If the prior or the start has another size than the weights.

        Cost:
            A Newton step: one pass over the data, and a solve to a tolerance that tightens as it converges.
        """
        model = self.training
        model.check()
        solver = CG() if solver is None else solver
        check_kind("solver=", solver, (Solver,), "CG() or SGD()")
        check_positive("scale", scale)
        check_count("steps", steps)
        start = None if initial is None else self._checked(initial)
        rtol = solver.mode_tolerance(model.weights.dtype) if rtol is None else rtol
        check_positive("rtol", rtol)
        loss = Loss(model, self._prior(prior), scale, self._affine, self._curvature_cache)
        with torch.no_grad():
            first = lowest(loss) if start is None else loss.at_weights(start)
            found = solver.minimise(loss, first, rtol=rtol, steps=steps, progress=progress)
        return replace(found, matvecs=found.matvecs + (2 if start is None else 1))

    def _prior(self, prior: Diagonal | Prior) -> Diagonal:
        """The prior's precision as an operator, in the dtype of the weights."""
        like = self.training.weights
        hint = "posterior.prior, or Isotropic(1.0)"
        check_kind("the prior", prior, (Diagonal, Prior), hint)
        if isinstance(prior, Prior):
            prior.check_centred("a tangent model")
        diagonal = prior.diagonal(self.training.layout, like) if isinstance(prior, Prior) else prior.values
        operator = Diagonal(diagonal.to(like))
        if operator.shape != (len(like), len(like)):
            raise ShapeError(f"a prior of {len(like)} weights", f"{operator!r}", hint)
        return operator

    @property
    def _affine(self) -> bool:
        return self.target == "affine"

    def _checked(self, weights: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
        """The weights, if they are as many as are uncertain.

        Raises:
            MismatchError: If what the model stands on was changed since.
            ShapeError: If they are not.
        """
        self.training.check()
        like = self.training.weights
        if weights.shape != like.shape:
            hint = "the uncertain weights as one flat vector"
            raise ShapeError(f"weights of shape {list(like.shape)}", f"{list(weights.shape)}", hint)
        return weights.detach().to(like)
