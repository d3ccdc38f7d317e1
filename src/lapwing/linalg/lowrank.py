"""Low-rank matrices plus a diagonal, and the leading eigenpairs that products with one random block give."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import NumericalError, ShapeError, check_count
from lapwing.ground.probes import gaussian
from lapwing.ground.results import Stopped
from lapwing.linalg.operator import FunctionOperator, Operator, check_shape, check_square, in_float64
from lapwing.linalg.spectral import Eigenbasis, finite
from lapwing.linalg.structured import Diagonal, Structured, positive


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
        check_shape(self.factor, self.factor.ndim == 2, "a factor [d, r]", "u[:, None] for a single column")
        if self.base is not None and (self.base.shape != self.shape or self.base.dtype != self.dtype):
            raise ShapeError(f"a base like {self!r}", f"{self.base!r}", "one entry for each row of the factor")

    def root(self) -> FunctionOperator:
        """``D^½ (I + P diag(1 / (1 + √(1 + m))) Pᵀ)``; without a base ``U`` itself, ``[d, r]``."""
        if not bool(self._added.any()):
            u = self.factor
            return FunctionOperator(lambda e: u @ e, lambda v: u.mT @ v, (u.shape[0], u.shape[1]), u)
        _, m = self._spectral
        return self._split_root(self._base_entries.sqrt(), 1 / (1 + (1 + m).sqrt()))

    def inverse_root(self) -> FunctionOperator:
        """``D^{-½} (I - P diag(1 / (1 + m + √(1 + m))) Pᵀ)``."""
        _, m = self._spectral
        return self._split_root(self._base_entries.rsqrt(), -1 / (1 + m + (1 + m).sqrt()))

    def logdet(self) -> Float[Tensor, ""]:
        """``log |D| + Σ log(1 + m)``."""
        _, m = self._spectral
        return self._base_entries.log().sum() + m.log1p().sum()

    def diagonal(self) -> Float[Tensor, " d"]:
        """The squared lengths of the rows of ``U``, plus ``D``."""
        return self.factor.square().sum(1) + self._added

    def eigenvalues(self) -> Float[Tensor, " d"]:
        """All ``d``, float64; costs ``d r²`` where ``D`` is constant, else ``d³`` through ``dense()``."""
        constant = Diagonal(self._added).constant
        if constant is None:
            return torch.linalg.eigvalsh(finite(self.dense()).double())
        squares = torch.linalg.svdvals(finite(self.factor).double()).square()
        return constant + torch.cat([squares, squares.new_zeros(self.shape[0] - len(squares))])

    def split(
        self, rows: Float[Tensor, "k d"]
    ) -> tuple[Float[Tensor, "k d"], Float[Tensor, "k r"], Float[Tensor, " r"]]:
        """``X D^{-½}``, what of it lies along ``P``, ``X D^{-½} P``, and ``m``; all float64.

        Args:
            rows: X.
        """
        directions, m = self._spectral
        whitened = rows.double() * self._base_entries.rsqrt()
        return whitened, whitened @ directions, m

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
        return positive(self.base.values).double()

    @cached_property
    def _spectral(self) -> tuple[Float[Tensor, "d r"], Float[Tensor, " r"]]:
        """``P``, column by column in memory, and ``m``; float64."""
        whitened = self._base_entries.rsqrt() * finite(self.factor).mT.double()
        gram = Eigenbasis(whitened @ whitened.mT)
        return (gram.vectors.mT @ whitened).mT, gram.values

    def _identity_plus(self, inner: Float[Tensor, " r"], block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        """``(I + P diag(inner) Pᵀ)`` times a block."""
        directions, _ = self._spectral
        seen = block.mT.contiguous() @ directions  # few columns in front are several times faster than behind
        return block + ((seen * inner) @ directions.mT).mT

    def _split_root(self, outer: Float[Tensor, " d"], inner: Float[Tensor, " r"]) -> FunctionOperator:
        """The operator ``diag(outer) (I + P diag(inner) Pᵀ)``."""
        return self._in_float64(
            lambda noise: outer[:, None] * self._identity_plus(inner, noise),
            lambda block: self._identity_plus(inner, outer[:, None] * block),
        )

    def _matmat(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        return self.factor @ (self.factor.mT @ block) + self._added[:, None] * block

    def _solve(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        outer = self._base_entries.rsqrt()[:, None]
        _, m = self._spectral
        return outer * self._identity_plus(-1 / (1 + m), outer * block)

    def _affine(self, c: float | Tensor, s: float | Tensor) -> LowRank:
        return LowRank(c**0.5 * self.factor, Diagonal(c * self._added + s))

    def _plus_diagonal(self, other: Diagonal) -> LowRank:
        return LowRank(self.factor, Diagonal(self._added + other.values))


@final
@dataclass(frozen=True, eq=False)
class Eigenpairs:
    """The largest positive eigenvalues found, and their vectors: ``U diag(λ) Uᵀ ≈ A``.

    Args:
        values: ``λ``, descending, ``[r]``, float64. Positive, but for the single 0 of a matrix that has no other.
        vectors: ``U``, orthonormal columns ``[d, r]``, in the operator's dtype.
        residual: ``|A u - λ u|`` of each pair, ``[r]``, float64: some eigenvalue lies within it.
        matvecs: Columns that were multiplied by ``A``, in all.
        stopped: "converged" at the tolerance, or with fewer pairs where there are no more; else "iterations".
    """

    values: Float[Tensor, " r"]
    vectors: Float[Tensor, "d r"]
    residual: Float[Tensor, " r"]
    matvecs: int
    stopped: Stopped


def randomised_eigenpairs(
    operator: Operator,
    rank: int,
    *,
    oversampling: int = 10,
    power: int = 1,
    generator: torch.Generator | None = None,
) -> Eigenpairs:
    """The ``rank`` largest eigenvalues, roughly, from a few products with one wide block.

    Rayleigh-Ritz on the range of ``A^{power + 1} Ω`` for a Gaussian ``Ω [d, rank + oversampling]``, made orthonormal
    after each product (Halko, Martinsson & Tropp 2011, algorithms 4.4 and 5.3). Eigenvalues come out too small, the
    more so the slower the spectrum decays; ``residual`` says how far off each pair is.

    Args:
        operator: Symmetric ``A``, ``[d, d]``.
        rank: Pairs wanted.
        oversampling: Columns beyond ``rank``.
        power: Further products, each of which sharpens the decay of the spectrum.
        generator: Source of ``Ω``.

    Returns:
        The pairs, fewer than ``rank`` where ``A`` has fewer positive eigenvalues; "iterations", as nothing is iterated
        until it converges.

    Raises:
        ShapeError: ``A`` is not square.
        ConfigError: The rank is not positive, or another argument negative.
        NumericalError: A product is not finite.

    Cost: ``power + 2`` products with ``rank + oversampling`` columns; ``16 d (rank + oversampling)`` bytes.

    Example:
        >>> from lapwing.linalg import Diagonal
        >>> randomised_eigenpairs(Diagonal(torch.tensor([1.0, 5.0, 3.0])), 2).values
        tensor([5.0000, 3.0000], dtype=torch.float64)
    """
    size, product = check_square(operator), in_float64(operator)
    for name, count, least in (("rank", rank, 1), ("oversampling", oversampling, 0), ("power", power, 0)):
        check_count(name, count, least)
    q = fresh(product.like.new_empty(size, 0), rank + oversampling, generator)
    for _ in range(power + 1):
        q = torch.linalg.qr(finite(product @ q)).Q
    w = finite(product @ q)
    t = q.mT @ w
    values, vectors = (found.flip(-1) for found in torch.linalg.eigh((t + t.mT) / 2))
    count = positives(values[:rank], 10 * torch.finfo(operator.dtype).eps * values.abs().max().item())
    values, vectors = values[:count], vectors[:, :count]
    found = q @ vectors
    residual = torch.linalg.vector_norm(w @ vectors - found * values, dim=0)
    matvecs = (power + 2) * q.shape[1]
    return Eigenpairs(values.clamp(min=0), found.to(operator.dtype), residual, matvecs, "iterations")


def fresh(basis: Float[Tensor, "d m"], columns: int, generator: torch.Generator | None) -> Float[Tensor, "d b"]:
    """Random orthonormal columns that are orthogonal to a basis, as many as there is room for."""
    size, used = basis.shape
    drawn = gaussian([size, min(columns, size - used)], like=basis, generator=generator)
    return orthonormal(drawn, basis)


def orthonormal(block: Float[Tensor, "d b"], basis: Float[Tensor, "d m"]) -> Float[Tensor, "d b"]:
    """Orthonormal columns for the span of a block, orthogonal to a basis."""
    return torch.linalg.qr(block - basis @ (basis.mT @ block)).Q


def positives(values: Float[Tensor, " r"], rounding: float) -> int:
    """How many of the largest eigenvalues are positive, at least one: the first, where it is not below 0."""
    if values[0] < -rounding:
        raise NumericalError(
            "an operator with a positive eigenvalue",
            f"a largest one of {values[0].item():.3g}",
            "the operator's negative",
        )
    return max(1, int((values > rounding).sum()))
