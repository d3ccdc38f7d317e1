"""Low-rank matrices plus a diagonal, and the factor that products with one random block give."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import NumericalError, ShapeError, check_count
from lapwing.ground.probes import gaussian
from lapwing.linalg.operator import FunctionOperator, Operator, check_shape, check_square, in_float64
from lapwing.linalg.structured import Diagonal, Structured, finite, positive


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
        values, vectors = torch.linalg.eigh(whitened @ whitened.mT)
        return (vectors.mT @ whitened).mT, values.clamp(min=0.0)

    def _identity_plus(self, inner: Float[Tensor, " r"], block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        """``(I + P diag(inner) Pᵀ)`` times a block."""
        directions, _ = self._spectral
        seen = block.mT.contiguous() @ directions  # in front, as in ``_matmat``
        return block + ((seen * inner) @ directions.mT).mT

    def _split_root(self, outer: Float[Tensor, " d"], inner: Float[Tensor, " r"]) -> FunctionOperator:
        """The operator ``diag(outer) (I + P diag(inner) Pᵀ)``."""
        return self._in_float64(
            lambda noise: outer[:, None] * self._identity_plus(inner, noise),
            lambda block: self._identity_plus(inner, outer[:, None] * block),
        )

    def _matmat(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        seen = block.mT.contiguous() @ self.factor  # few columns in front are several times faster than behind
        return self.factor @ seen.mT + self._added[:, None] * block

    def _solve(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        outer = self._base_entries.rsqrt()[:, None]
        _, m = self._spectral
        return outer * self._identity_plus(-1 / (1 + m), outer * block)

    def _affine(self, c: float | Tensor, s: float | Tensor) -> LowRank:
        return LowRank(c**0.5 * self.factor, Diagonal(c * self._added + s))

    def _plus_diagonal(self, other: Diagonal) -> LowRank:
        return LowRank(self.factor, Diagonal(self._added + other.values))


def nystrom(
    operator: Operator, rank: int, *, power: int = 0, generator: torch.Generator | None = None
) -> Float[Tensor, "d r"]:
    """A factor ``F`` of a positive semi-definite matrix, ``F Fᵀ ≈ A``, from one product with a random block.

        F Fᵀ = (A Ω) (Ωᵀ A Ω)⁻¹ (A Ω)ᵀ                                    (Tropp et al. 2017, algorithm 3)

    computed for ``A + νI`` with a shift ``ν`` of the size of rounding, which is taken off the eigenvalues again. It
    never exceeds ``A``, and with ``rank`` three times the effective dimension of ``A`` at ``α`` the preconditioner
    ``P = F Fᵀ + α I`` makes the condition number of ``P⁻¹ (A + α I)`` less than 28 on average (Frangella, Tropp & Udell
    2023, theorem 1.1).

    Args:
        operator: Symmetric positive semi-definite ``A``, ``[d, d]``.
        rank: Columns of ``Ω``.
        power: Products that turn ``Ω`` towards the largest eigenvalues first, each made orthonormal.
        generator: Source of ``Ω``.

    Returns:
        ``F``, in the operator's dtype; orthogonal columns, longest first, those of length 0 left out.

    Raises:
        ShapeError: ``A`` is not square.
        ConfigError: The rank is not positive.
        NumericalError: A product is not finite, or ``A`` not positive semi-definite.

    Cost: ``power + 1`` products with ``rank`` columns; ``24 d rank`` bytes.

    Example:
        >>> from lapwing.linalg import Diagonal
        >>> factor = nystrom(Diagonal(torch.tensor([4.0, 0.0, 0.0]).double()), 2)
        >>> factor.shape, round(factor.square().sum().item(), 6)
        (torch.Size([3, 1]), 4.0)
    """
    size, product = check_square(operator), in_float64(operator)
    check_count("rank", rank)
    check_count("power", power, 0)
    omega = fresh(product.like.new_empty(size, 0), rank, generator)
    for _ in range(power):
        omega = torch.linalg.qr(finite(product @ omega)).Q
    sketch = finite(product @ omega)
    core = omega.mT @ sketch
    length = torch.linalg.matrix_norm(sketch).item()
    if length == 0:
        return sketch[:, :1].to(operator.dtype)
    for shift in (length * torch.finfo(operator.dtype).eps * 10.0**power for power in range(4)):
        shifted = (core + core.mT) / 2 + shift * torch.eye(len(core), dtype=core.dtype, device=core.device)
        lower, failed = torch.linalg.cholesky_ex(shifted)
        if not failed:
            break
    else:
        smallest = torch.linalg.eigvalsh((core + core.mT) / 2)[0].item()
        raise NumericalError(
            "a positive semi-definite operator",
            f"uᵀAu = {smallest:.3g} for a unit vector u (|A Ω| = {length:.3g})",
            "the GGN rather than the Hessian",
        )
    half = torch.linalg.solve_triangular(lower, (sketch + shift * omega).mT, upper=False).mT
    vectors, singular, _ = torch.linalg.svd(half, full_matrices=False)
    values = (singular.square() - shift).clamp(min=0)
    kept = max(1, int((values > shift).sum()))
    return (vectors[:, :kept] * values[:kept].sqrt()).to(operator.dtype)


def fresh(basis: Float[Tensor, "d m"], columns: int, generator: torch.Generator | None) -> Float[Tensor, "d b"]:
    """Random orthonormal columns that are orthogonal to a basis, as many as there is room for."""
    size, used = basis.shape
    drawn = gaussian([size, min(columns, size - used)], like=basis, generator=generator)
    return orthonormal(drawn, basis)


def orthonormal(block: Float[Tensor, "d b"], basis: Float[Tensor, "d m"]) -> Float[Tensor, "d b"]:
    """Orthonormal columns for the span of a block, orthogonal to a basis."""
    return torch.linalg.qr(block - basis @ (basis.mT @ block)).Q
