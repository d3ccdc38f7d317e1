"""The evidence of a Gaussian linear model as a function of prior precisions and noise.

    log p(y) = log p(y | θ*) - ½ Σ_g α_g |θ_g|² - ½ log det Λ / det A          (Immer et al. 2021, equation 9)

with Λ = s G + A, A = α_g on the weights of group g, and s the noise precision relative to the one G was computed with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.errors import ShapeError, precisions_of
from lapwing.ground.precision import wide_like
from lapwing.linalg import Structured
from lapwing.linear.log_det_ratio import Complexity

Precisions: TypeAlias = Float[Tensor, "*g"] | Sequence[float] | float
"""Of each group of weights, or one for all."""

Scale: TypeAlias = Float[Tensor, ""] | float
"""The noise precision relative to the one that the curvature was computed with."""


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

    def log_marginal(self, precisions: Precisions, scale: Scale) -> Float[Tensor, ""]:
        """Log evidence in nats, equation 9, differentiable in both arguments where they are tensors.

        Args:
            precisions: α, one for each group or one for all, 1 / weight².
            scale: s, the noise precision over the one G was computed with; 1 where the likelihood has no noise.

        Raises:
            ConfigError: If a number is not positive and finite.
            ShapeError: If there are more or fewer precisions than groups.

        Example:
            >>> import lapwing as lw
            >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(20, 2), torch.arange(20) % 3
            >>> evidence = lw.Laplace(lw.Categorical(), structure=lw.Full()).fit(model, (x, y)).evidence
            >>> bool(evidence.log_marginal(1e-9, 1.0) < evidence.log_marginal(1.0, 1.0))
            True
        """
        alpha, s = self._tensors(precisions, scale)
        return self.log_joint(alpha, s) - 0.5 * self.complexity.log_det_ratio(alpha, s)

    def log_joint(self, precisions: Precisions, scale: Scale) -> Float[Tensor, ""]:
        """``log p(y | θ) - ½ Σ_g α_g |θ_g|²``, nats: the evidence but for its charge for what the data determined."""
        alpha, s = self._tensors(precisions, scale)
        misfit, norms = self.fit(alpha, s)
        return self.log_likelihood(misfit, s) - 0.5 * (alpha * norms).sum()

    def _tensors(self, precisions: Precisions, scale: Scale) -> tuple[Float[Tensor, " g"], Float[Tensor, ""]]:
        """A precision for each group, and the noise; what came as tensors keeps its graph."""
        groups = len(self.square_norms)
        alpha = self._tensor(precisions, "prior", "log_marginal(1.0, 1.0)")
        if alpha.numel() == 1:
            alpha = alpha.reshape(1).expand(groups)
        if list(alpha.shape) != [groups]:
            hint = "one for each group of the prior, or one for all"
            raise ShapeError(f"prior precisions [{groups}]", f"{list(alpha.shape)}", hint)
        return alpha, self._tensor(scale, "noise", "a scale of 1.0").reshape(())

    def _tensor(self, given: Precisions, whose: str, hint: str) -> Tensor:
        """Numbers as a tensor beside those of the evidence."""
        return given if isinstance(given, Tensor) else precisions_of(whose, given, hint).to(**wide_like(self.sizes))

    def log_likelihood(self, misfit: Tensor, scale: Tensor) -> Tensor:
        """Log likelihood when the squared error is ``misfit`` and the noise precision is scaled by s."""
        at_one = -self.nll + 0.5 * self.misfit
        return at_one - 0.5 * scale * misfit + 0.5 * self.observations * scale.log()

    def fit(self, precisions: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Squared error and ``|θ_g|²``, at the trained weights or at the linear model's mode."""
        if self.shift is None:
            return scale.new_tensor(self.misfit), self.square_norms
        return self.shift.fit(self.misfit, precisions, scale)

    def effective_dimensions(self, precisions: Precisions, scale: Scale) -> Float[Tensor, " g"]:
        """``γ_g = d_g - α_g tr(Λ⁻¹)_g``: directions of each group the data determined (MacKay 1992, equation 4.9)."""
        return self.complexity.effective_dimensions(*self._tensors(precisions, scale))


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
