"""The mean of a Gaussian process before data, by generalised least squares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import NumericalError

Mean: TypeAlias = Literal["zero", "constant", "linear"]
"""What a process is before data."""


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
