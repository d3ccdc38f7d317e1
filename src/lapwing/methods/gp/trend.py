"""The mean of a Gaussian process before data, by generalised least squares, and what stays unknown with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import NumericalError
from lapwing.methods.gp.kernels import Kernel
from lapwing.methods.gp.matrix import KernelMatrix, cross
from lapwing.predictive import Moments

Mean: TypeAlias = Literal["zero", "constant", "linear"]
"""What a process is before data."""


ROWS = 1024
"""Inputs whose variances are computed together."""


@final
@dataclass(frozen=True)
class Trend:
    """``h(x) β`` with unknown β: h has no column, a one, or a one and the inputs.

    Args:
        kind: Which.

    Example:
        >>> Trend("linear")(torch.tensor([[3.0]]))
        tensor([[1., 3.]])
    """

    kind: Mean

    def __call__(self, x: Float[Tensor, "n p"]) -> Float[Tensor, "n q"]:
        """H."""
        ones = x.new_ones(len(x), 1)
        return {"zero": ones[:, :0], "constant": ones}.get(self.kind, torch.cat([ones, x], 1))


def least_squares(
    basis: Float[Tensor, "n q"],
    solved_basis: Float[Tensor, "n q"],
    solved: Float[Tensor, "n k"],
) -> tuple[Float[Tensor, "n k"], Float[Tensor, "q k"]]:
    """``α = C⁻¹ (z - H β)`` and ``β = (Hᵀ C⁻¹ H)⁻¹ Hᵀ C⁻¹ z`` from ``C⁻¹ H`` and ``C⁻¹ z``.

    Args:
        basis: H.
        solved_basis: ``C⁻¹ H``.
        solved: ``C⁻¹ z``.
    """
    if not basis.shape[1]:
        return solved, solved.new_zeros(0, solved.shape[1])
    beta, failed = torch.linalg.solve_ex(basis.mT @ solved_basis, basis.mT @ solved)
    if bool(failed):
        came = "one that ended before it began to"
        raise NumericalError("a solve that tells the mean before data", came, "Cholesky(), or more noise")
    return solved - solved_basis @ beta, beta


@final
@dataclass(frozen=True, eq=False)
class Covariance:
    """``k(x, x') - K_{xX} C⁻¹ K_{Xx'} + r(x)ᵀ (Hᵀ C⁻¹ H)⁻¹ r(x')``, ``r(x) = h(x) - Hᵀ C⁻¹ K_{Xx}``, ``C = K + N``.

    The last term is what is not known of β (Rasmussen & Williams 2006, equation 2.42).

    Args:
        kernel: k.
        inputs: X.
        trend: h.
        solved_basis: ``C⁻¹ H``.
        solve: ``C⁻¹ V`` of a block.
        quadratic_form: ``vᵀ C⁻¹ v`` of its columns.
    """

    kernel: Kernel
    inputs: Float[Tensor, "n p"]
    trend: Trend
    solved_basis: Float[Tensor, "n q"]
    solve: Callable[[Float[Tensor, "n m"]], Float[Tensor, "n m"]]
    quadratic_form: Callable[[Float[Tensor, "n m"]], Float[Tensor, " m"]]

    def variance(self, x: Float[Tensor, "m p"]) -> Float[Tensor, " m"]:
        """At each input alone."""
        found: list[Tensor] = []
        for rows in x.to(self.inputs).split(ROWS):
            across, rest, slopes = self._parts(rows)
            known = self.quadratic_form(across) - (rest * slopes).sum(0)
            found.append((self.kernel.diagonal(rows) - known).clamp_min(0.0))
        return torch.cat(found).to(x)

    def joint(self, x: Float[Tensor, "m p"]) -> Float[Tensor, "m m"]:
        """At all inputs together."""
        new = x.to(self.inputs)
        across, rest, slopes = self._parts(new)
        return (KernelMatrix(self.kernel, new).dense() - across.mT @ self.solve(across) + rest.mT @ slopes).to(x)

    def _parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``K_{Xx}``, r, and ``(Hᵀ C⁻¹ H)⁻¹ r``."""
        across = cross(self.kernel, self.inputs, x)
        rest = self.trend(x).mT - self.solved_basis.mT @ across
        if not len(rest):
            return across, rest, rest
        return across, rest, torch.linalg.solve(self.trend(self.inputs).mT @ self.solved_basis, rest)


def apart(mean: Float[Tensor, "m c"], variance: Float[Tensor, " m"]) -> Moments:
    """Outputs of one variance that are independent given the data."""
    return Moments(mean, torch.diag_embed(variance[:, None].expand_as(mean)))
