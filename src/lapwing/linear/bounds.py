"""Lower bounds on the evidence that keep the mode of the tangent model, or its whole posterior, while the prior moves.

With w* the mode of the tangent model for the precisions α₀ and the relative noise precision s₀, and
γ_g = n_g - α₀_g tr(Λ₀⁻¹)_g there, both bounds are functions of (α, s) that touch the evidence at (α₀, s₀):

    𝓜(α, s) = log p(y | w*) - ½ Σ_g α_g |w*_g|² - ½ log det(I + s A⁻¹ G)               (Antorán 2024, section 6.1)
    𝓔(α, s) = log p(y | w*) - ½ s/s₀ Σ_g γ_g - ½ log det(I + s₀ A₀⁻¹ G)
              - ½ Σ_g [α_g |w*_g|² + (α_g/α₀_g - 1) n_g - α_g/α₀_g γ_g - n_g log α_g/α₀_g]     (equation 3.5)

The first is the Gaussian evidence lower bound with the best covariance for every α; the second keeps that of α₀.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ShapeError
from lapwing.linear.evidence import Evidence


def at_mode(evidence: Evidence, square_norms: Float[Tensor, " g"], *, nll: float, misfit: float = 0.0) -> Evidence:
    """The evidence with its fit to the data taken at other weights: at a mode of the tangent model, the M-bound.

    ``𝓜(α, s) = log p(y | w*) - ½ Σ_g α_g |w*_g|² - ½ log det(I + s A⁻¹ G)`` (Antorán 2024, section 6.1). For Gaussian
    noise it is nowhere above the evidence ``log N(y; f, J A⁻¹ Jᵀ + B⁻¹ / s)`` of the tangent model, and equal to it at
    the prior and the noise whose mode w* is. For other likelihoods the same holds of Laplace's approximation with G
    held fixed.

    Args:
        evidence: The evidence at any weights.
        square_norms: ``|w*_g|²`` of each group, every weight times its precision relative to the group's.
        nll: Negative log likelihood of all targets at the tangent model's outputs for w*, at s = 1, nats.
        misfit: For Gaussian noise the weighted squared error there, at s = 1; 0 for others.

    Returns:
        Evidence whose ``log_marginal`` is 𝓜, concave in the logarithms of α and s; what climbs an evidence climbs it.

    Raises:
        ShapeError: If there is not one square norm a group.

    Cost:
        None: the log-determinant's eigenvalues are shared.

    Example:
        >>> import torch
        >>> import lapwing as lw
        >>> x = torch.randn(20, 2)
        >>> posterior = lw.Laplace(lw.Gaussian()).fit(torch.nn.Linear(2, 1), (x, x.sum(1, keepdim=True)))
        >>> bound = at_mode(posterior.evidence, torch.tensor([2.0]), nll=19.0, misfit=1.0)
        >>> bool(bound.log_marginal(torch.tensor([1.0]), torch.tensor(1.0)) < -20)
        True
    """
    if square_norms.shape != evidence.sizes.shape:
        raise ShapeError(
            f"one square norm for each of {len(evidence.sizes)} groups of the prior",
            f"shape {list(square_norms.shape)}",
            "prior.square_norms(mode.weights, layout)",
        )
    return replace(evidence, square_norms=square_norms.to(evidence.sizes), nll=nll, misfit=misfit, shift=None)


@final
@dataclass(frozen=True, eq=False)
class DecoupledBound:
    """The evidence lower bound of N(w*, Λ₀⁻¹), mode and covariance both kept (Antorán 2024, equation 3.5).

        𝓔(α, s) = E_q[log p(y | w)] - KL(q | N(0, A⁻¹)),   q = N(w*, Λ₀⁻¹)

    It is nowhere above 𝓜 of the same mode, and equal to it and to the evidence at (α₀, s₀), with equal derivatives: a
    maximum there is one of the evidence. Between, it bends more, so that its maxima take many more steps to get there.

    Args:
        bound: The evidence at w*; see ``at_mode``.
        precisions: α₀.
        scale: s₀.

    Example:
        >>> import torch
        >>> import lapwing as lw
        >>> x = torch.randn(20, 2)
        >>> posterior = lw.Laplace(lw.Gaussian()).fit(torch.nn.Linear(2, 1), (x, x.sum(1, keepdim=True)))
        >>> alpha, s = posterior.prior_precisions, posterior.scale
        >>> decoupled = DecoupledBound(posterior.evidence, alpha, s)
        >>> torch.allclose(decoupled.log_marginal(alpha, s), posterior.evidence.log_marginal(alpha, s))
        True
    """

    bound: Evidence
    precisions: Float[Tensor, " g"]
    scale: Float[Tensor, ""]

    @cached_property
    def effective_dimensions(self) -> Float[Tensor, " g"]:
        """``γ_g`` at (α₀, s₀)."""
        return self.bound.effective_dimensions(self.precisions, self.scale)

    def log_marginal(self, precisions: Float[Tensor, " g"], scale: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """𝓔 in nats, differentiable in both arguments.

        Args:
            precisions: α.
            scale: s.

        Cost:
            A log-determinant at (α₀, s₀) and its derivative.
        """
        gamma, ratio = self.effective_dimensions, precisions / self.precisions
        spread = ratio * (self.bound.sizes - gamma) - self.bound.sizes * ratio.log() - self.bound.sizes
        at_start = self.bound.complexity.log_det_ratio(self.precisions, self.scale)
        explained = scale / self.scale * gamma.sum()
        return self.bound.log_joint(precisions, scale) - 0.5 * (at_start + explained + spread.sum())


def decoupled_precisions(
    precisions: Float[Tensor, " g"],
    gamma: Float[Tensor, " g"],
    square_norms: Float[Tensor, " g"],
    sizes: Float[Tensor, " g"],
) -> Float[Tensor, " g"]:
    """The prior precisions of largest decoupled bound: those of expectation maximisation.

    ``α_g = n_g / (|w*_g|² + tr Λ₀⁻¹_g)`` with ``tr Λ₀⁻¹_g = (n_g - γ_g) / α₀_g`` (Antorán 2024, equation 3.5).

    Args:
        precisions: α₀, of which w* and γ are.
        gamma: Effective dimension ``γ_g`` of each group, exact or an estimate.
        square_norms: ``|w*_g|²``.
        sizes: Weights ``n_g`` in each group.

    Example:
        >>> import torch
        >>> one = torch.ones(1)
        >>> decoupled_precisions(precisions=one, gamma=one, square_norms=one, sizes=2 * one)
        tensor([1.])
    """
    return sizes / (square_norms + (sizes - gamma) / precisions)


def decoupled_scale(
    scale: Float[Tensor, ""], gamma: Float[Tensor, " g"], misfit: float, observations: float
) -> Float[Tensor, ""]:
    """The relative noise precision of largest decoupled bound: that of expectation maximisation.

    ``s = N / (misfit + tr(G Λ₀⁻¹))`` with ``tr(G Λ₀⁻¹) = γ / s₀`` (Antorán 2024, equation 3.5).

    Args:
        scale: s₀, of which w* and γ are.
        gamma: Effective dimension of each group, exact or an estimate.
        misfit: Weighted squared error at w*, at s = 1.
        observations: Scalar observations N.

    Example:
        >>> import torch
        >>> decoupled_scale(torch.tensor(2.0), torch.tensor([4.0]), misfit=3.0, observations=10.0)
        tensor(2.)
    """
    return observations / (misfit + gamma.sum() / scale)
