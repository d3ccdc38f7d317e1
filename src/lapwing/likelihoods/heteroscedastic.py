"""Real targets with Gaussian noise whose size depends on the input."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.data import check_finite
from lapwing.ground.errors import DataError, ShapeError
from lapwing.likelihoods.base import Likelihood
from lapwing.likelihoods.targets import check_shape, elementwise, is_integral

_HINT = "one number for each two outputs (mean, log variance)"


@final
@dataclass(frozen=True)
class HeteroscedasticGaussian(Likelihood):
    """p(y | f) = N(y; m, e^s) with outputs f = (m_1 ... m_c, s_1 ... s_c): all means, then all log variances.

    The Hessian of the loss in (m, s) can be indefinite, so B is the Fisher information, its expectation
    under the model: diag(e^{-s}, 1/2). It is positive definite and does not depend on the target.

    Example:
        >>> HeteroscedasticGaussian().hessian(torch.zeros(1, 2)).diagonal(dim1=-2, dim2=-1)
        tensor([[1.0000, 0.5000]])
    """

    def canonical_targets(self, outputs: Float[Tensor, "*batch two_c"], targets: Tensor) -> Tensor:
        """Targets ``[n, *event, c]`` in the dtype of the outputs; see ``Likelihood.canonical_targets``."""
        _check_real(targets)
        means, _ = split(outputs)
        return elementwise(targets, means, self.class_dim, _HINT)

    def _nll(
        self, outputs: Float[Tensor, "*batch two_c"], targets: Float[Tensor, "*batch c"]
    ) -> Float[Tensor, "*batch"]:
        """Σ_i e^{-s_i} (y_i - m_i)² / 2 + s_i / 2 + log(2π) / 2 in nats."""
        means, log_variances = split(outputs)
        squares = torch.exp(-log_variances) * (targets - means).square()
        return 0.5 * (squares + log_variances + math.log(2 * math.pi)).sum(-1)

    def _score(
        self, outputs: Float[Tensor, "*batch two_c"], targets: Float[Tensor, "*batch c"]
    ) -> Float[Tensor, "*batch two_c"]:
        """(e^{-s} (y - m), (e^{-s} (y - m)² - 1) / 2)."""
        means, log_variances = split(outputs)
        precisions = torch.exp(-log_variances)
        residuals = targets - means
        return torch.cat([precisions * residuals, 0.5 * (precisions * residuals.square() - 1)], -1)

    def _hessian(
        self, outputs: Float[Tensor, "*batch two_c"], targets: Tensor | None = None
    ) -> Float[Tensor, "*batch two_c two_c"]:
        """B = diag(e^{-s}, 1/2), the Fisher information."""
        _, log_variances = split(outputs)
        precisions = torch.exp(-log_variances)
        return torch.diag_embed(torch.cat([precisions, torch.full_like(precisions, 0.5)], -1))

    def _root(
        self, outputs: Float[Tensor, "*batch two_c"], targets: Tensor | None = None
    ) -> Float[Tensor, "*batch two_c two_c"]:
        """S = diag(e^{-s/2}, √½)."""
        _, log_variances = split(outputs)
        halves = torch.exp(-0.5 * log_variances)
        return torch.diag_embed(torch.cat([halves, torch.full_like(halves, 0.5**0.5)], -1))

    def draw(
        self, outputs: Float[Tensor, "*batch two_c"], *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "*batch c"]:
        """Targets m + e^{s/2} ε with ε standard normal."""
        means, log_variances = split(outputs)
        noise = probes.gaussian(means.shape, like=means, generator=generator)
        return means + noise * torch.exp(0.5 * log_variances)

    def mean(self, outputs: Float[Tensor, "*batch two_c"]) -> Float[Tensor, "*batch c"]:
        """The means m."""
        return split(outputs)[0]

    def _count(self, targets: Tensor) -> int:
        """Number of real numbers observed, n · c."""
        return targets.numel()

    def _check_targets(self, outputs: Tensor, targets: Tensor) -> None:
        _check_real(targets)
        means, _ = split(outputs)
        check_shape(targets, tuple(means.shape), _HINT)
        check_finite(targets, "targets", "dropping the examples without a target")


def split(
    outputs: Float[Tensor, "*batch two_c"],
) -> tuple[Float[Tensor, "*batch c"], Float[Tensor, "*batch c"]]:
    """Means and log variances, the two halves of the outputs of a ``HeteroscedasticGaussian``.

    Raises:
        ShapeError: If the number of outputs is odd.
    """
    if outputs.shape[-1] % 2:
        raise ShapeError(
            "an even number of outputs, all means and then all log variances",
            f"outputs of shape {list(outputs.shape)}",
            "a network with two outputs a target, or Gaussian() for noise of one size",
        )
    means, log_variances = outputs.chunk(2, -1)
    return means, log_variances


def _check_real(targets: Tensor) -> None:
    if is_integral(targets) or targets.dtype == torch.bool:
        raise DataError(
            "real targets for HeteroscedasticGaussian",
            f"targets of type {targets.dtype}",
            "targets.float() for regression, or Categorical() for class labels",
        )
