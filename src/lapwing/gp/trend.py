"""The mean of a Gaussian process before data, by generalised least squares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import NumericalError
from lapwing.ground.precision import wide

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
        ones = x.new_ones(x.shape[0], 1)
        if self.kind == "zero":
            return ones[:, :0]
        if self.kind == "constant":
            return ones
        return torch.cat([ones, x], 1)


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
    change, unit, solved_unit = (part.to(solved) for part in orthonormalised(basis, solved_basis))
    slopes, failed = torch.linalg.solve_ex(unit.mT @ solved_unit, unit.mT @ solved)
    if bool(failed):
        came = "one that ended before it began to"
        raise NumericalError("a solve that tells the mean before data", came, "Cholesky(), or more noise")
    return solved - solved_unit @ slopes, change @ slopes


def orthonormalised(
    basis: Float[Tensor, "n q"], solved_basis: Float[Tensor, "n q"]
) -> tuple[Float[Tensor, "q r"], Float[Tensor, "n r"], Float[Tensor, "n r"]]:
    """A change of basis T, ``H T`` and ``C⁻¹ H T``, float64, where the columns of ``H T`` are orthonormal.

    Around the mean of the inputs, and in units of their spread: ``Hᵀ C⁻¹ H`` itself is singular to rounding where the
    mean is thousands of spreads away. What the inputs do not tell is left out.

    Args:
        basis: H, its first column ones where it has any.
        solved_basis: ``C⁻¹ H``.
    """
    h = wide(basis)
    centre = h.mean(0)
    centre[:1] = 0.0
    lengths = (h - centre).norm(dim=0)
    scales = torch.where(lengths > 1e-12 * h.norm(dim=0), 1 / lengths, 0.0)
    unit = (h - centre) * scales
    values, vectors = torch.linalg.eigh(unit.mT @ unit)
    spanned = values > len(values) * torch.finfo(torch.float64).eps * values[-1:]
    turned = vectors[:, spanned] * values[spanned].rsqrt()
    change = scales[:, None] * turned
    change[:1] -= centre @ change
    return change, unit @ turned, wide(solved_basis) @ change
