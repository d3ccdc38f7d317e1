"""Diagonal matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.precision import wide
from lapwing.linalg.checks import nonnegative, positive
from lapwing.linalg.operators.base import Structured, check_operator_tensor
from lapwing.linalg.operators.inverse_forms import SumForm


@final
@dataclass(frozen=True, eq=False, repr=False)
class Diagonal(Structured):
    """The matrix ``diag(values)``.

    Args:
        values: Diagonal entries ``[d]``, not negative; positive where ``solve`` and ``logdet`` are asked for.

    Example:
        >>> Diagonal(torch.tensor([1.0, 4.0])).solve(torch.tensor([1.0, 1.0])).tolist()
        [1.0, 0.25]
    """

    values: Tensor

    def __post_init__(self) -> None:
        """Check the shape."""
        check_operator_tensor(self.values, self.values.ndim == 1, "diagonal entries [d]", "matrix.diagonal()")

    def root(self) -> Diagonal:
        """``diag(√values)``."""
        return Diagonal(nonnegative(self.values).sqrt())

    def inverse_root(self) -> Diagonal:
        """``diag(1/√values)``."""
        return Diagonal(positive(self.values).rsqrt())

    def inverse_form(self) -> SumForm:
        """See ``Structured.inverse_form``; the reciprocals."""
        return SumForm(wide(1 / positive(self.values)))

    def diagonal(self) -> Float[Tensor, " d"]:
        """The entries themselves."""
        return self.values

    def eigenvalues(self) -> Float[Tensor, " d"]:
        """The entries themselves, float64."""
        return wide(self.values)

    @property
    def rounding_scale(self) -> float:
        """See ``Structured.rounding_scale``: 0."""
        return 0.0

    def eigenvalues_by_group(self, group: Int[Tensor, " d"]) -> tuple[Float[Tensor, " d"], Int[Tensor, " d"]]:
        """See ``Structured.eigenvalues_by_group``."""
        return self.eigenvalues(), group

    def in_units(self, relative: Float[Tensor, " d"]) -> Diagonal:
        """See ``Structured.in_units``."""
        return Diagonal(wide(self.values) / wide(relative))

    def plus(self, other: Structured) -> Structured:
        """See ``Structured.plus``."""
        if not isinstance(other, Diagonal):
            return super().plus(other)
        return Diagonal(self.values + other.values.to(self.values))

    @property
    def _like(self) -> Tensor:
        return self.values

    def _matmat(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        return self.values[:, None] * block

    def _dense(self) -> Float[Tensor, "d d"]:
        return torch.diag(self.values)

    def _affine(self, c: float | Tensor, s: float | Tensor) -> Diagonal:
        return Diagonal(c * self.values + s)

    def _plus_diagonal(self, entries: Float[Tensor, " d"]) -> Diagonal:
        return Diagonal(self.values + entries)
