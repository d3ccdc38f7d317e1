"""The network made linear in its weights: a convex model with a mode of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, final, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.curved import curved, thin_root
from lapwing.curvature.jacobian import BatchJacobian
from lapwing.data import check_inputs, place
from lapwing.errors import ShapeError, check_kind, check_option, check_positive
from lapwing.likelihoods import Gaussian
from lapwing.linalg import Diagonal, FunctionOperator
from lapwing.problem import Problem, Training
from lapwing.results import Stopped
from lapwing.solvers import CG, Solver
from lapwing.solvers.newton import Point, minimise
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
        return self._outputs(self._jacobian(inputs), self._checked(weights))

    def score(self, weights: Float[Tensor, " d"]) -> tuple[Float[Tensor, " d"], float, float]:
        """Gradient of the log likelihood at ``h(w, ·)``, the negative log likelihood there, and the misfit.

        Args:
            weights: w.

        Returns:
            ``Σ_i J_iᵀ ∇_h log p(y_i | h_i)``; ``-Σ_i log p(y_i | h_i)`` in nats, and for Gaussian noise
            ``Σ_i |y_i - h_i|²`` weighted by the noise precision, else 0; all with the fitted likelihood.

        Cost:
            One pass over the data: a forward pass, a product with J and one with Jᵀ.
        """
        likelihood, w = self.training.likelihood, self._checked(weights)
        total, nll, misfit = torch.zeros_like(w), 0.0, 0.0
        with torch.no_grad():
            for jacobian, h, y in self._pieces(w):
                likelihood.check(h, y)
                nll += float(likelihood.nll(h, y).double().sum())
                if isinstance(likelihood, Gaussian):
                    misfit += float((likelihood.precisions(h) * (y - h).square()).double().sum())
                total += jacobian.pull(likelihood.score(h, y).reshape(-1, 1))[:, 0]
        return total, nll, misfit

    def problem(self, weights: Float[Tensor, " d"], prior: Diagonal, scale: float = 1.0) -> Problem:
        """``Λ = s G + A`` with J at the trained weights and the output Hessian B at ``h(w, ·)``: Newton's matrix.

        Args:
            weights: w.
            prior: A.
            scale: s.
        """
        training, w = self.training, self._checked(weights)
        size, like = training.network.size, training.network.like

        def product(block: Tensor) -> Tensor:
            total = torch.zeros_like(block)
            for jacobian, h, y in self._pieces(w):
                pushed = jacobian.push(block)
                bent = [curved(training.likelihood, h, y, part.view(h.shape)).flatten() for part in pushed.unbind(1)]
                total += jacobian.pull(torch.stack(bent, dim=1))
            return total

        def noisy(block: Tensor) -> Tensor:
            total, start = block.new_zeros(size, block.shape[1]), 0
            for jacobian, root in self._roots(w):
                columns = root.shape[0] * root.shape[-1]
                noise = block[start : start + columns].view(len(root), -1, block.shape[1])
                total += jacobian.pull((root @ noise).flatten(0, 1))
                start += columns
            return total

        def adjoint(block: Tensor) -> Tensor:
            rows = [
                (root.mT @ jacobian.push(block).view(len(root), -1, block.shape[1])).flatten(0, 1)
                for jacobian, root in self._roots(w)
            ]
            return torch.cat(rows)

        each = thin_root(training.likelihood, training.likelihood.canonical(like.new_zeros(1, *training.survey.output)))
        columns = training.examples * each[..., 0, :].numel()
        return Problem(
            FunctionOperator(product, product, (size, size), like),
            FunctionOperator(noisy, adjoint, (size, columns), like),
            prior,
            scale,
            training,
        )

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
            solver: What solves with the Newton matrix; ``None`` for ``CG()``.
            initial: Where to start; ``None`` for 0.
            rtol: ``Mode.gradient`` at which it is found; ``None`` for 1e-6, in float32 for 1e-4.
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
        tolerance = rtol if rtol is not None else 1e-6 if network.like.dtype == torch.float64 else 1e-4
        check_positive("rtol", tolerance)

        def point(w: Tensor) -> Point:
            score, nll, misfit = self.score(w)
            return Point(w, scale * score, scale * (0.5 * misfit if self._noisy else nll), (nll, misfit))

        found = minimise(
            point,
            lambda w: self.problem(w, prior, scale),
            start,
            prior,
            solver,
            rtol=tolerance,
            steps=steps,
            progress=progress,
        )
        nll, misfit = found.point.told
        return Mode(found.point.weights, nll, misfit, found.gradient, found.iterations, found.matvecs, found.stopped)

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

    def _jacobian(self, inputs: Inputs) -> BatchJacobian:
        training = self.training
        return BatchJacobian(training.network, training.survey, training.likelihood, inputs)

    def _outputs(self, jacobian: BatchJacobian, weights: Float[Tensor, " d"]) -> Float[Tensor, "n *event c"]:
        """``h(w, ·)`` of a batch."""
        network = self.training.network
        with torch.no_grad():
            f = self.training.likelihood.canonical(network(jacobian.inputs)).detach()
            if self.target == "simplified":
                return jacobian.push(weights[:, None]).view(f.shape)
            return f + jacobian.push((weights - network.weights)[:, None]).view(f.shape)

    def _pieces(self, weights: Float[Tensor, " d"]) -> Iterator[tuple[BatchJacobian, Tensor, Tensor]]:
        """The Jacobian of each batch, with its canonical outputs ``h(w, ·)`` and targets."""
        for batch in self.training.data:
            jacobian = self._jacobian(batch.inputs)
            h = self._outputs(jacobian, weights)
            yield jacobian, h, self.training.likelihood.canonical_targets(h, batch.targets)

    def _roots(self, weights: Float[Tensor, " d"]) -> Iterator[tuple[BatchJacobian, Float[Tensor, "m c r"]]]:
        """The Jacobian of each batch, and the root of B at each of its positions."""
        for jacobian, h, y in self._pieces(weights):
            yield jacobian, thin_root(self.training.likelihood, h, y).flatten(0, -3)
