"""Lanczos' recurrence: a symmetric operator through the tridiagonal matrices of its Krylov spaces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lapwing.ground.errors import NumericalError, ShapeError, check_count
from lapwing.ground.precision import wide
from lapwing.linalg.checks import finite
from lapwing.linalg.operators.base import Operator, Structured, check_operand, check_square, in_float64
from lapwing.linalg.systems import precondition

Function: TypeAlias = Callable[[Tensor], Tensor]


@final
@dataclass(frozen=True, eq=False)
class LanczosStep:
    """One more row of ``T``: ``v_j``, ``α_j``, and beside it ``β_{j-1}`` (first 0) and ``β_j`` (0 where exhausted)."""

    v: Float[Tensor, "d k"]
    alpha: Float[Tensor, " k"]
    before: Float[Tensor, " k"]
    beta: Float[Tensor, " k"]


@final
class Recurrence:
    """Column by column ``A V = Z T + β_j z_{j+1} e_jᵀ`` with ``Z = P V`` and ``VᵀZ = I``; no basis is kept.

    Args:
        product: ``A``, between float64 vectors.
        start: Where each column starts, ``[d, k]``: ``z_1 = start / length``.
        rounding: What is left of a vector is rounding, and its space exhausted, where it is this much of ``T`` or less.
        preconditioner: ``P``; None for the identity.
    """

    def __init__(
        self, product: Operator, start: Float[Tensor, "d k"], rounding: float, preconditioner: Structured | None = None
    ) -> None:
        self.product = product
        self.preconditioner = preconditioner
        self.rounding = rounding
        self.before = torch.zeros_like(start)
        self.scale = start.new_zeros(start.shape[1])
        self.alive = torch.ones_like(self.scale, dtype=torch.bool)
        self.z = self.v = start
        self.length = self._normalise(start.clone())
        self.beta = torch.zeros_like(self.length)

    def step(self, columns: slice | Bool[Tensor, " k"], earlier: Float[Tensor, "k j d"] | None = None) -> LanczosStep:
        """Multiply these columns, and make what comes orthogonal to ``earlier`` ones.

        Once is enough: the recurrence itself has taken off the long parts.
        """
        v = self.v
        before = self.beta
        p = torch.zeros_like(v)
        p[:, columns] = self.product @ v[:, columns]
        alpha = (p * v).sum(0)
        p.addcmul_(self.z, alpha.expand_as(p), value=-1).addcmul_(self.before, before.expand_as(p), value=-1)
        if earlier is not None:
            w = p.mT
            p = torch.baddbmm(w[:, None], (earlier @ w[..., None]).mT, earlier, alpha=-1)[:, 0].mT
        self.before = self.z
        self.scale = torch.maximum(self.scale, alpha.abs() + before)
        self.beta = self._normalise(p)
        return LanczosStep(v, alpha, before, self.beta)

    def _normalise(self, z: Float[Tensor, "d k"]) -> Float[Tensor, " k"]:
        """The next pair from ``β z``, zero where the space of a column is exhausted; returns ``β``."""
        v = precondition(self.preconditioner, z)
        square = finite((z * v).sum(0))
        if bool((square < 0).any()):
            raise NumericalError(
                "a positive definite preconditioner", f"zᵀP⁻¹z = {square.min().item():.3g}", "a Structured with a base"
            )
        beta = square.sqrt()
        self.alive = self.alive & (beta > self.rounding * self.scale)
        inverse = torch.where(self.alive, 1 / beta, 0.0)
        same = v is z
        self.z = z.mul_(inverse)
        self.v = self.z if same else v.mul_(inverse)
        return torch.where(self.alive, beta, 0.0)


@final
@dataclass(frozen=True, eq=False)
class Krylov:
    """``j`` steps of Lanczos from each of ``k`` starts: ``A Q = Q T + β_j q_{j+1} e_jᵀ`` with ``q_1 = b / |b|``.

    ``T`` is tridiagonal with ``alpha`` on its diagonal and ``beta`` beside it. Its eigenvalues ``θ`` (Ritz
    values) lie within the spectrum of ``A``; with the squared first entries ``τ²`` of its eigenvectors for
    weights they are the Gauss quadrature of ``bᵀ f(A) b`` (Golub & Meurant 2010, chapter 6).

    A start whose Krylov space is exhausted keeps ``β = 0`` from there on, and diagonal entries of no weight.

    Args:
        alpha: Diagonals of ``T``, ``[k, j]``, float64.
        beta: Entries beside them ``[k, j]``; the last one leads out of the space.
        length: ``|b|``, ``[k]``.
        basis: ``Qᵀ``, ``[k, j, d]``; None where it was not kept.
    """

    alpha: Float[Tensor, "k j"]
    beta: Float[Tensor, "k j"]
    length: Float[Tensor, " k"]
    basis: Float[Tensor, "k j d"] | None

    @property
    def steps(self) -> int:
        """``j``."""
        return self.alpha.shape[1]

    @property
    def exhausted(self) -> Bool[Tensor, " k"]:
        """Which starts have nothing left to explore: their Ritz values are eigenvalues, their quadratures exact."""
        return (self.beta == 0).any(1)

    @cached_property
    def earlier(self) -> Krylov:
        """The recurrence after two thirds of its steps: what it has to agree with to have converged."""
        steps = max(1, 2 * self.steps // 3)
        basis = None if self.basis is None else self.basis[:, :steps]
        return Krylov(self.alpha[:, :steps], self.beta[:, :steps], self.length, basis)

    @cached_property
    def ritz(self) -> tuple[Float[Tensor, "k j"], Float[Tensor, "k j j"]]:
        """Eigenvalues, ascending, and eigenvectors (in columns) of ``T``; found on the CPU: they are small."""
        side = self.beta[:, :-1]
        tridiagonal = self.alpha.diag_embed() + side.diag_embed(1) + side.diag_embed(-1)
        values, vectors = torch.linalg.eigh(tridiagonal.cpu())
        return values.to(self.alpha.device), vectors.to(self.alpha.device)

    @property
    def ritz_residual(self) -> Float[Tensor, "k j"]:
        """``|A y - θ y| = β_j |last entry of the eigenvector|`` of each Ritz pair (Parlett 1998, section 13.2)."""
        return self.beta[:, -1:] * self.ritz[1][:, -1].abs()

    def coefficients(self, function: Function) -> Float[Tensor, "k j"]:
        """``f(T) e₁``, so that ``f(A) b ≈ |b| Q f(T) e₁``."""
        values, vectors = self.ritz
        return (vectors @ (function(values) * vectors[:, 0])[..., None])[..., 0]

    def quadrature(self, function: Function) -> Float[Tensor, " k"]:
        """``bᵀ f(A) b ≈ |b|² Σ τ² f(θ)``, exact where ``f`` is a polynomial of degree below ``2 j``."""
        values, vectors = self.ritz
        return self.length.square() * (function(values) * vectors[:, 0].square()).sum(1)


def lanczos(
    operator: Operator,
    start: Float[Tensor, "d *k"],
    steps: int,
    *,
    reorthogonalise: bool = True,
    until: Callable[[Krylov], bool] | None = None,
) -> Krylov:
    """Lanczos' recurrence from every column of ``start``, each by itself, one block product a step.

        β_j q_{j+1} = A q_j - α_j q_j - β_{j-1} q_{j-1},   α_j = q_jᵀ A q_j            (Lanczos 1950; Paige 1972)

    Args:
        operator: Symmetric ``A``, ``[d, d]``.
        start: One start ``[d]`` or several ``[d, k]``, in the operator's dtype or float64.
        steps: Steps at most; fewer where every Krylov space is exhausted.
        reorthogonalise: Whether the basis is kept and each new vector made orthogonal to all of it. Without it
            three blocks are kept: converged Ritz values return as copies, which quadratures and extreme values bear.
        until: Asked after each step, later after each tenth more, whether to stop there.

    Returns:
        The recurrence, float64.

    Raises:
        ShapeError: ``A`` is not square, or ``start`` does not fit.
        ConfigError: ``steps`` is less than 1.
        NumericalError: A product is not finite.

    Cost: ``j`` products with ``k`` columns; reorthogonalisation adds ``2 d j²`` flops a column and holds
    ``8 d j k`` bytes, else ``24 d k`` bytes.

    Example:
        >>> from lapwing.linalg import Diagonal
        >>> krylov = lanczos(Diagonal(torch.tensor([1.0, 2.0, 4.0])), torch.ones(3), steps=3)
        >>> krylov.ritz[0].round(decimals=6).tolist()
        [[1.0, 2.0, 4.0]]
    """
    size = check_square(operator)
    check_count("steps", steps)
    product = in_float64(operator)
    start = wide(start.detach())
    block = check_operand(product, start if start.ndim == 2 else start[:, None], size)
    if block.shape[1] == 0:
        raise ShapeError(f"at least one start, [{size}] or [{size}, k]", f"shape {list(start.shape)}", "k >= 1")
    k = block.shape[1]
    most = min(steps, size) if reorthogonalise else steps
    process = Recurrence(product, block, 10 * torch.finfo(operator.dtype).eps)  # the products resolve no more
    alpha = block.new_zeros(k, most)
    beta = block.new_zeros(k, most)
    basis = block.new_empty(k, most, size) if reorthogonalise else None
    j = 0
    due = 1
    while True:
        alive = process.alive
        basis_so_far = None
        if basis is not None:
            basis[:, j] = process.v.mT
            basis_so_far = basis[:, : j + 1]
        row = process.step(slice(None), basis_so_far)
        # An exhausted start repeats its first Rayleigh quotient: inside the spectrum, of weight 0.
        alpha[:, j] = torch.where(alive, row.alpha, alpha[:, 0] if j else torch.ones_like(row.alpha))
        beta[:, j] = row.beta
        j += 1
        over = j == most or not bool(process.alive.any())
        if over or j >= due:
            due = j + 1 + (j - 1) // 10
            krylov = Krylov(alpha[:, :j], beta[:, :j], process.length, basis_so_far)
            if (until is not None and until(krylov)) or over:
                return krylov
