"""The evidence of a Gaussian linear model as a function of prior precisions and noise.

    log p(y) = log p(y | θ*) - ½ Σ_g α_g |θ_g|² - ½ log det Λ / det A          (Immer et al. 2021, equation 9)

with Λ = s G + A, A = α_g on the weights of group g, and s the noise precision relative to the one G was computed with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.linalg import Structured
from lapwing.linear.log_det_ratio import Complexity


@final
@dataclass(frozen=True, eq=False)
class LogEvidence:
    """The log evidence as a differentiable function of the prior precisions and the noise.

    Args:
        complexity: The log-determinant term.
        square_norms: ``|θ_g - μ_g|²`` of each group, every weight times its precision relative to the group's.
        sizes: Weights in each group.
        nll: Negative log likelihood at s = 1, nats.
        misfit: Weighted squared error at s = 1, for Gaussian noise; 0 otherwise.
        observations: Scalar observations; 0 where the likelihood has no noise.
        shift: What moves with the mode of the linear model; ``None`` keeps the trained weights.
    """

    complexity: Complexity
    square_norms: Float[Tensor, " g"]
    sizes: Float[Tensor, " g"]
    nll: float
    misfit: float
    observations: float
    shift: NewtonStep | None = None

    def log_marginal(self, precisions: Float[Tensor, " g"], scale: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Log evidence in nats, differentiable in both arguments."""
        return self.log_joint(precisions, scale) - 0.5 * self.complexity.log_det_ratio(precisions, scale)

    def log_joint(self, precisions: Float[Tensor, " g"], scale: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """``log p(y | θ) - ½ Σ_g α_g |θ_g|²``, nats: the evidence but for its charge for what the data determined."""
        misfit, norms = self.fit(precisions, scale)
        return self.log_likelihood(misfit, scale) - 0.5 * (precisions * norms).sum()

    def log_likelihood(self, misfit: Tensor, scale: Tensor) -> Tensor:
        """Log likelihood when the squared error is ``misfit`` and the noise precision is scaled by s."""
        at_one = -self.nll + 0.5 * self.misfit
        return at_one - 0.5 * scale * misfit + 0.5 * self.observations * scale.log()

    def fit(self, precisions: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Squared error and ``|θ_g|²``, at the trained weights or at the linear model's mode."""
        if self.shift is None:
            return scale.new_tensor(self.misfit), self.square_norms
        return self.shift.fit(self.misfit, precisions, scale)

    def effective_dimensions(self, precisions: Float[Tensor, " g"], scale: Float[Tensor, ""]) -> Float[Tensor, " g"]:
        """``γ_g = d_g - α_g tr(Λ⁻¹)_g``: directions of each group the data determined (MacKay 1992, equation 4.9)."""
        return self.complexity.effective_dimensions(precisions, scale)


@final
@dataclass(frozen=True, eq=False)
class NewtonStep:
    """The mode of the linear model around the trained weights: one Newton step, exact for Gaussian noise.

    Args:
        curvature: G at s = 1.
        score: Gradient of the log likelihood in the weights at s = 1.
        weights: Trained weights.
        group: Group of each weight.
        relative: Precision of each weight relative to its group's; ``None`` for 1.
        mean: Mean of the prior; ``None`` for 0.
    """

    curvature: Structured
    score: Float[Tensor, " d"]
    weights: Float[Tensor, " d"]
    group: Int[Tensor, " d"]
    relative: Float[Tensor, " d"] | None = None
    mean: Float[Tensor, " d"] | None = None

    def step(self, precisions: Float[Tensor, " g"], scale: Float[Tensor, ""]) -> Float[Tensor, " d"]:
        """``Λ⁻¹ (s ∇ log p(y | θ) - A (θ - μ))``."""
        prior = (precisions[self.group] * self._relative).to(self.weights)
        precision = self.curvature.scaled(float(scale)).plus_diagonal(prior)
        return precision.solve(scale.to(self.score) * self.score - prior * self._deviation)

    def fit(self, misfit: float, precisions: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Squared error and ``|θ_g - μ_g|²`` at the mode; the step is held fixed, its derivative has no effect."""
        with torch.no_grad():
            step = self.step(precisions, scale)
            moved = self._deviation + step
            error = misfit - 2.0 * (self.score * step).sum() + (step * (self.curvature @ step)).sum()
            squares = self._relative * moved.to(precisions).square()
            norms = torch.zeros_like(precisions).index_add(0, self.group, squares)
        return error.to(precisions), norms

    @property
    def _deviation(self) -> Float[Tensor, " d"]:
        """``θ - μ``."""
        return self.weights if self.mean is None else self.weights - self.mean

    @property
    def _relative(self) -> Float[Tensor, " d"] | float:
        return 1.0 if self.relative is None else self.relative
