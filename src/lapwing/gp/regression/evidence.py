"""The log evidence of a Gaussian process regression, and its gradient: exact, or from drawn functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.gp.kernels.matrix import DENSE, weighted_gradient
from lapwing.gp.regression.groups import OutputGroup
from lapwing.gp.regression.system import System, singular
from lapwing.gp.trend import least_squares
from lapwing.ground.errors import NumericalError
from lapwing.ground.precision import wide
from lapwing.ground.results import Estimate
from lapwing.linalg.cholesky import inverted


def log_density(
    system: System, alpha: Float[Tensor, "n c"], beta: Float[Tensor, "q c"], logdets: Sequence[float]
) -> float:
    """``log p(y) = -½ Σ_c ((y - H β)ᵀ α + log |C| + n log 2π)`` and what targets that repeat an input add, nats.

    Args:
        system: C, y and H.
        alpha: ``C⁻¹ (y - H β)``.
        beta: β of most likelihood (Antorán 2024, equation 2.43).
        logdets: ``log |C|`` of each group.
    """
    averages = system.distinct
    n, c = averages.targets.shape
    rest = wide(averages.targets) - wide(system.trend(averages.inputs.to(beta)) @ beta)
    sizes = sum(len(group.outputs) * logdet for group, logdet in zip(system.groups, logdets, strict=True))
    fit = float((rest * wide(alpha)).sum()) + sizes + c * n * math.log(2 * math.pi)
    return float(system.data.repeated(system.noises)[0].sum()) - 0.5 * fit


def log_evidence(
    system: System, alpha: Float[Tensor, "n c"], beta: Float[Tensor, "q c"], seed: int
) -> float | Estimate:
    """``log_density`` with the determinant of a Cholesky factor, or else by stochastic Lanczos quadrature.

    Args:
        system: C, y and H.
        alpha: ``C⁻¹ (y - H β)``.
        beta: β.
        seed: Of the probes.
    """
    solver = system.solver
    logdets = [
        solver.log_determinant(group.problem, generator=torch.Generator().manual_seed(seed + number))
        for number, group in enumerate(system.groups)
    ]
    value = log_density(system, alpha, beta, [logdet.value for logdet in logdets])
    if solver.exact:
        return value
    errors = [0.5 * len(group.outputs) * logdet.stderr for group, logdet in zip(system.groups, logdets, strict=True)]
    return Estimate(value, math.hypot(*errors), logdets[0].samples)


@final
@dataclass(frozen=True, eq=False)
class GroupGradient:
    """The gradient of the evidence of one group of outputs.

    Args:
        kernel: In the logarithms of the hyper-parameters of its kernel.
        noise: In the logarithm of its noise variance.
    """

    kernel: Float[Tensor, " h"]
    noise: Float[Tensor, ""]

    @classmethod
    def of(
        cls,
        group: OutputGroup,
        weight: Callable[[slice, slice], Float[Tensor, "a b"]],
        diagonal: Float[Tensor, " n"],
    ) -> GroupGradient:
        """``Σ_ij W_ij ∂C_ij``.

        Args:
            group: Outputs with their C.
            weight: The entries of W at some rows and columns, on or above the diagonal.
            diagonal: Those on it.
        """
        return cls(weighted_gradient(group.matrix, weight), wide(diagonal * group.noise).sum().cpu())


def evidence_and_gradient(system: System) -> tuple[float, Float[Tensor, " h"]]:
    """The log evidence, and its gradient; exact, by a dense factor and its inverse.

        ∂ log p(y) = ½ Σ_ij (α αᵀ - C⁻¹)_ij ∂C_ij                                  (Antorán 2024, equation 3.28)

    Raises:
        NumericalError: If C is singular up to rounding.
    """
    targets = system.solvable(system.distinct.targets)
    basis = system.trend(system.inputs)
    alpha = torch.empty_like(targets)
    beta = targets.new_empty(basis.shape[1], targets.shape[1])
    logdets = list[float]()
    gradients = list[GroupGradient]()
    for group in system.groups:
        outputs = list(group.outputs)
        c = len(outputs)
        whole = group.matrix.dense(_room_of(system))
        whole.diagonal().add_(group.noise)
        try:
            inverse, solved, logdet = inverted(whole, torch.cat([targets[:, outputs], basis], 1))
        except NumericalError as error:
            raise singular(error, group.noise) from None
        own, slopes = least_squares(basis, solved[:, c:], solved[:, :c])
        diagonal = 0.5 * (own.square().sum(1) - c * inverse.diagonal())
        gradients.append(GroupGradient.of(group, _exact_weight(inverse, own), diagonal))
        alpha[:, outputs] = own
        beta[:, outputs] = slopes
        logdets.append(logdet)
    return log_density(system, alpha, beta, logdets), _joined(system, gradients)


def estimated_gradient(system: System, alpha: Float[Tensor, "n c"], drawn: Float[Tensor, "n k"]) -> Float[Tensor, " h"]:
    """The gradient from solves of drawn functions with noise, whose covariance is ``C⁻¹`` (Lin et al. 2024).

        ∂ log p(y) ≈ ½ αᵀ ∂C α - ½ mean_s α_sᵀ ∂C α_s

    Args:
        system: C.
        alpha: ``C⁻¹ (y - H β)``.
        drawn: ``α_s``, all outputs of a draw together.
    """
    samples = drawn.shape[1] // system.outputs
    gradients = list[GroupGradient]()
    for group in system.groups:
        own = alpha[:, group.outputs]
        scaled = drawn[:, group.columns(drawn.shape[1], system.outputs)] / samples**0.5
        diagonal = 0.5 * (own.square().sum(1) - scaled.square().sum(1))
        gradients.append(GroupGradient.of(group, _drawn_weight(own, scaled), diagonal))
    return _joined(system, gradients)


def _room_of(system: System) -> int:
    """Bytes that a kernel matrix may take."""
    return system.solver.max_dense_bytes or DENSE


def _exact_weight(
    inverse: Float[Tensor, "n n"], alpha: Float[Tensor, "n c"]
) -> Callable[[slice, slice], Float[Tensor, "a b"]]:
    """``½ (α αᵀ - c C⁻¹)`` a tile at a time, of an inverse whose upper half is right."""

    def weight(i: slice, j: slice) -> Tensor:
        part = inverse[i, j] if i != j else inverse[i, j].triu() + inverse[i, j].triu(1).mT
        return 0.5 * torch.addmm(part, alpha[i], alpha[j].mT, beta=-alpha.shape[1])

    return weight


def _drawn_weight(
    alpha: Float[Tensor, "n c"], drawn: Float[Tensor, "n s"]
) -> Callable[[slice, slice], Float[Tensor, "a b"]]:
    """``½ (α αᵀ - mean_s α_s α_sᵀ)`` a tile at a time."""

    def weight(i: slice, j: slice) -> Tensor:
        return 0.5 * (alpha[i] @ alpha[j].mT - drawn[i] @ drawn[j].mT)

    return weight


def _joined(system: System, gradients: Sequence[GroupGradient]) -> Float[Tensor, " h"]:
    """The gradient in all hyper-parameters from those of the groups, and what ``repeated`` adds."""
    repeats = system.data.repeated(system.noises)[1].cpu()
    noises = torch.stack(
        [part.noise + repeats[list(group.outputs)].sum() for group, part in zip(system.groups, gradients, strict=True)]
    )
    kernels = [part.kernel for part in gradients]
    kernel = torch.cat(kernels) if isinstance(system.kernel, tuple) else torch.stack(kernels).sum(0)
    noise_each = isinstance(system.likelihood.precision, tuple)
    return torch.cat([kernel, noises if noise_each else noises.sum()[None]])
