"""Low-rank matrices plus a diagonal."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import NumericalError, ShapeError
from lapwing.ground.precision import WIDE, wide
from lapwing.linalg.checks import finite, positive
from lapwing.linalg.operators.base import FunctionOperator, Structured, check_operator_tensor, common_value
from lapwing.linalg.operators.diagonal import Diagonal
from lapwing.linalg.operators.inverse_forms import SumForm


@final
@dataclass(frozen=True, eq=False, repr=False)
class LowRank(Structured):
    """The matrix ``A = U Uᵀ + D`` for a factor ``U [d, r]`` and a diagonal ``D``.

    With ``V = D^{-½} U`` and the decomposition ``Vᵀ V = E diag(m) Eᵀ`` of its ``r x r`` Gram matrix,
    ``P = V E`` has orthogonal columns of squared length ``m``, and any function ``f`` of ``I + V Vᵀ`` with
    ``f(1) = 1`` is ``I + P diag((f(1 + m) - 1) / m) Pᵀ``. As ``A = D^½ (I + V Vᵀ) D^½``, this gives

        inverse          D^{-½} (I - P diag(1 / (1 + m)) Pᵀ) D^{-½}          (Woodbury)
        root             D^½ (I + P diag(1 / (1 + √(1 + m))) Pᵀ)
        inverse root     D^{-½} (I - P diag(1 / (1 + m + √(1 + m))) Pᵀ)
        log determinant  log |D| + Σ log(1 + m)

    Cost: ``d r²`` once, in float64; then ``d r`` a column, the roots included. The inverse: Golub & Van Loan
    2013, section 2.1.4.

    Args:
        factor: ``U``, ``[d, r]``.
        base: ``D``, positive; None for 0: then ``A`` is singular and has products, a spectrum and a root.

    Example:
        >>> low = LowRank(torch.tensor([[1.0], [0.0]]), Diagonal(torch.tensor([1.0, 4.0])))
        >>> low.solve(torch.tensor([2.0, 4.0])).tolist()
        [1.0, 1.0]
    """

    factor: Tensor
    base: Diagonal | None = None

    def __post_init__(self) -> None:
        """Check the shapes."""
        check_operator_tensor(self.factor, self.factor.ndim == 2, "a factor [d, r]", "u[:, None] for a single column")
        if self.base is not None and (self.base.shape != self.shape or self.base.dtype != self.dtype):
            raise ShapeError(f"a base like {self!r}", f"{self.base!r}", "one entry for each row of the factor")

    def root(self) -> FunctionOperator:
        """``D^½ (I + P diag(1 / (1 + √(1 + m))) Pᵀ)``; without a base ``U`` itself, ``[d, r]``."""
        if not bool(self._added.any()):
            u = self.factor
            return FunctionOperator(lambda e: u @ e, lambda v: u.mT @ v, (u.shape[0], u.shape[1]), u)
        _, m = self._directions
        return self._split_root(self._base_entries.sqrt(), 1 / (1 + (1 + m).sqrt()))

    def inverse_root(self) -> FunctionOperator:
        """``D^{-½} (I - P diag(1 / (1 + m + √(1 + m))) Pᵀ)``."""
        _, m = self._directions
        return self._split_root(self._base_entries.rsqrt(), -1 / (1 + m + (1 + m).sqrt()))

    def inverse_form(self) -> SumForm:
        """See ``Structured.inverse_form``; by Woodbury's formula."""
        directions, m = self._directions
        inverse = 1 / self._base_entries
        return SumForm(inverse, taken=inverse.sqrt()[:, None] * directions * (1 + m).rsqrt())

    @property
    def root_cost(self) -> int:
        """See ``Structured.root_cost``."""
        return self.factor.numel()

    def logdet(self) -> Float[Tensor, ""]:
        """``log |D| + Σ log(1 + m)``."""
        _, m = self._directions
        return self._base_entries.log().sum() + m.log1p().sum()

    def diagonal(self) -> Float[Tensor, " d"]:
        """The squared lengths of the rows of ``U``, plus ``D``."""
        return self.factor.square().sum(1) + self._added

    def eigenvalues(self) -> Float[Tensor, " d"]:
        """All ``d``, float64; costs ``d r²`` where ``D`` is constant, else ``d³`` through ``dense()``."""
        constant = common_value(self._added)
        if constant is None:
            return torch.linalg.eigvalsh(wide(finite(self.dense())))
        squares = self._squares
        return constant + torch.cat([squares, squares.new_zeros(self.shape[0] - len(squares))])

    def split(
        self, rows: Float[Tensor, "k d"]
    ) -> tuple[Float[Tensor, "k d"], Float[Tensor, "k r"], Float[Tensor, " r"]]:
        """``X D^{-½}``, what of it lies along ``P``, ``X D^{-½} P``, and ``m``; all float64.

        Args:
            rows: X.
        """
        directions, m = self._directions
        whitened = wide(rows) * self._base_entries.rsqrt()
        return whitened, whitened @ directions, m

    @property
    def own_rounding(self) -> float:
        """See ``Structured.own_rounding``: that of its dtype, which is that of the products."""
        return 0.0 if self.dtype == WIDE else torch.finfo(self.dtype).eps

    @property
    def rounding_scale(self) -> float:
        """See ``Structured.rounding_scale``: the largest square of a singular value, 0 without ``own_rounding``."""
        return float(self._squares[0]) if self.own_rounding else 0.0

    def raised(self, epsilon: float) -> LowRank:
        """See ``Structured.raised``: by that of eigenvalues that may have been lost."""
        return LowRank(self.factor, Diagonal(self._added + self.own_rounding * self.rounding_scale))

    @property
    def known_root(self) -> Float[Tensor, "d r"] | None:
        """See ``Structured.known_root``."""
        return wide(self.factor) if self.base is None else None

    def in_units(self, relative: Float[Tensor, " d"]) -> LowRank | None:
        """See ``Structured.in_units``."""
        if self.base is not None:
            return None
        return LowRank(wide(relative).rsqrt()[:, None] * wide(self.factor))

    def plus(self, other: Structured) -> Structured:
        """See ``Structured.plus``; its rank is the sum of both, or d where that is less."""
        if not isinstance(other, LowRank):
            return super().plus(other)
        factor = torch.cat([self.factor, other.factor.to(self.factor)], 1)
        if factor.shape[1] > factor.shape[0]:
            factor = torch.linalg.qr(factor.mT).R.mT
        if self.base is None and other.base is None:
            return LowRank(factor)
        return LowRank(factor, Diagonal(self._added + other._added.to(self.factor)))

    @property
    def _like(self) -> Tensor:
        return self.factor

    @property
    def _added(self) -> Float[Tensor, " d"]:
        """The entries of ``D``, 0 without a base."""
        return torch.zeros_like(self.factor[:, 0]) if self.base is None else self.base.values

    @property
    def _base_entries(self) -> Float[Tensor, " d"]:
        if self.base is None:
            raise NumericalError(
                "a positive definite matrix",
                f"rank {min(self.factor.shape)} of {self.shape[0]} without a base",
                "LowRank(factor, base), or shifted(prior_precision)",
            )
        return wide(positive(self.base.values))

    @property
    def _squares(self) -> Float[Tensor, " r"]:
        """The squared singular values of ``U``, descending; float64."""
        return torch.linalg.svdvals(wide(finite(self.factor))).square()

    @cached_property
    def _directions(self) -> tuple[Float[Tensor, "d r"], Float[Tensor, " r"]]:
        """``P``, column by column in memory, and ``m``; float64."""
        whitened = self._base_entries.rsqrt() * wide(finite(self.factor).mT)
        values, vectors = torch.linalg.eigh(whitened @ whitened.mT)
        return (vectors.mT @ whitened).mT, values.clamp(min=0.0)

    def _identity_plus(self, inner: Float[Tensor, " r"], block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        """``(I + P diag(inner) Pᵀ)`` times a block."""
        directions, _ = self._directions
        coordinates = block.mT.contiguous() @ directions  # in front, as in ``_matmat``
        return block + ((coordinates * inner) @ directions.mT).mT

    def _split_root(self, outer: Float[Tensor, " d"], inner: Float[Tensor, " r"]) -> FunctionOperator:
        """The operator ``diag(outer) (I + P diag(inner) Pᵀ)``."""
        return self._in_float64(
            lambda noise: outer[:, None] * self._identity_plus(inner, noise),
            lambda block: self._identity_plus(inner, outer[:, None] * block),
        )

    def _matmat(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        coordinates = block.mT.contiguous() @ self.factor  # few columns are several times faster in front than behind
        return self.factor @ coordinates.mT + self._added[:, None] * block

    def _solve(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        outer = self._base_entries.rsqrt()[:, None]
        _, m = self._directions
        return outer * self._identity_plus(-1 / (1 + m), outer * block)

    def _affine(self, c: float | Tensor, s: float | Tensor) -> LowRank:
        if self.base is None and isinstance(s, float) and s == 0.0:
            return LowRank(c**0.5 * self.factor)
        return LowRank(c**0.5 * self.factor, Diagonal(c * self._added + s))

    def _plus_diagonal(self, entries: Float[Tensor, " d"]) -> LowRank:
        return LowRank(self.factor, Diagonal(self._added + entries))
