"""The largest eigenvalues of a symmetric operator and their vectors: by block Lanczos, or of one random block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import NumericalError, check_count, check_positive
from lapwing.ground.results import Stopped
from lapwing.linalg.checks import finite
from lapwing.linalg.operators.base import Operator, check_square, in_float64
from lapwing.linalg.sketching import orthonormal, random_orthonormal


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
    size = check_square(operator)
    product = in_float64(operator)
    check_count("rank", rank)
    check_count("oversampling", oversampling, 0)
    check_count("power", power, 0)
    q = random_orthonormal(product.like.new_empty(size, 0), rank + oversampling, generator)
    for _ in range(power + 1):
        q = torch.linalg.qr(finite(product @ q)).Q
    w = finite(product @ q)
    t = q.mT @ w
    ascending, vectors = torch.linalg.eigh((t + t.mT) / 2)
    values = ascending.flip(-1)
    vectors = vectors.flip(-1)
    count = count_positive(values[:rank], 10 * torch.finfo(operator.dtype).eps * values.abs().max().item())
    values = values[:count]
    vectors = vectors[:, :count]
    found = q @ vectors
    residual = torch.linalg.vector_norm(w @ vectors - found * values, dim=0)
    matvecs = (power + 2) * q.shape[1]
    return Eigenpairs(values.clamp(min=0), found.to(operator.device, operator.dtype), residual, matvecs, "iterations")


def top_eigenpairs(
    operator: Operator,
    rank: int,
    *,
    rtol: float = 1e-6,
    block: int = 16,
    max_steps: int = 200,
    generator: torch.Generator | None = None,
) -> Eigenpairs:
    """The ``rank`` largest eigenvalues by block Lanczos, thickly restarted.

    A basis ``Q`` grows by the block ``A Q_j`` made orthogonal to all of it; Rayleigh-Ritz on ``T = Qᵀ A Q`` gives the
    pairs, and ``|A y - θ y| = |R s|`` with the last block ``s`` of an eigenvector of ``T`` their residuals. A full
    basis is restarted from its best Ritz vectors (Golub & Underwood 1977; Wu & Simon 2000).

    Args:
        operator: Symmetric ``A``, ``[d, d]``.
        rank: Pairs wanted.
        rtol: Stop when each wanted residual is at most this times the largest eigenvalue.
        block: Width of a block. One product with a block costs a network far less than its columns one by one; a
            wider block finds eigenvalues that are close together in fewer steps. An eigenvalue repeated more often
            than ``block`` may be found only that often.
        max_steps: Block products at most.
        generator: Source of the first block.

    Returns:
        The pairs, fewer than ``rank`` where ``A`` has fewer positive eigenvalues.

    Raises:
        ShapeError: ``A`` is not square.
        ConfigError: An argument is not positive.
        NumericalError: A product is not finite.

    Cost: one product with ``block`` columns a step; at most ``8 d (3 rank + 12 block)`` bytes.

    Example:
        >>> from lapwing.linalg import Diagonal
        >>> top_eigenpairs(Diagonal(torch.tensor([1.0, 5.0, 3.0])), 2).values
        tensor([5.0000, 3.0000], dtype=torch.float64)
    """
    size = check_square(operator)
    product = in_float64(operator)
    check_count("rank", rank)
    check_count("block", block)
    check_count("max_steps", max_steps)
    check_positive("rtol", rtol)
    rounding = 10 * torch.finfo(operator.dtype).eps  # the products resolve no more
    restart = rank + 2 * block
    rank = min(rank, size)
    space = product.like.new_empty(size, min(2 * rank + 8 * block, size))
    q = random_orthonormal(space[:, :0], block, generator)
    filled = 0
    t = product.like.new_zeros(0, 0)
    values = product.like.new_zeros(0)
    vectors = product.like.new_zeros(0, 0)
    residual = product.like.new_zeros(0)
    matvecs = 0
    exhausted = 0  # positive eigenvalues there were when a space had nothing left to explore
    stopped: Stopped = "iterations"
    for _ in range(max_steps):
        if filled + q.shape[1] > space.shape[1]:
            space[:, :restart] = space[:, :filled] @ vectors[:, :restart]
            t = torch.diag(values[:restart])
            filled = restart
        last = q.shape[1]
        space[:, filled : filled + last] = q
        filled = filled + last
        basis = space[:, :filled]
        w = finite(product @ q)
        matvecs += last
        across = basis.mT @ w
        t = _bordered(t, across)
        ascending, vectors = torch.linalg.eigh(t)
        values = ascending.flip(-1)
        vectors = vectors.flip(-1)
        scale = values.abs().max().item()
        q, r = _new_directions(w - basis @ across, basis, rounding * scale)
        residual = torch.linalg.vector_norm(r @ vectors[-last:], dim=0)
        positive = int((values > rounding * scale).sum())
        if q.shape[1] == 0 and filled < size and exhausted < positive < rank:
            # An invariant subspace: what is orthogonal to it may hold more.
            q = random_orthonormal(basis, block, generator)
            exhausted = positive
        elif q.shape[1] == 0 or (filled >= rank and bool((residual[:rank] <= rtol * scale).all())):
            stopped = "converged"
            break
    count = count_positive(values[:rank], rounding * values.abs().max().item())
    found = (space[:, :filled] @ vectors[:, :count]).to(operator.device, operator.dtype)
    return Eigenpairs(values[:count].clamp(min=0), found, residual[:count], matvecs, stopped)


def _new_directions(
    w: Float[Tensor, "d b"], basis: Float[Tensor, "d m"], negligible: float
) -> tuple[Float[Tensor, "d c"], Float[Tensor, "c b"]]:
    """``w ≈ q r`` with orthonormal ``q`` orthogonal to the basis, but for what is negligible."""
    outer, inner = torch.linalg.qr(w - basis @ (basis.mT @ w))
    left, sizes, right = torch.linalg.svd(inner)
    kept = min(int((sizes > negligible).sum()), basis.shape[0] - basis.shape[1])
    return orthonormal(outer @ left[:, :kept], basis), sizes[:kept, None] * right[:kept]


def _bordered(t: Float[Tensor, "m m"], across: Float[Tensor, "n b"]) -> Float[Tensor, "n n"]:
    """``Qᵀ A Q`` after a block was added to ``Q``, from that of before and the new columns."""
    before = len(t)
    corner = (across[before:] + across[before:].mT) / 2
    return torch.cat([torch.cat([t, across[:before].mT]), torch.cat([across[:before], corner])], 1)


def count_positive(values: Float[Tensor, " r"], rounding: float) -> int:
    """How many of the largest eigenvalues are positive, at least one: the first, where it is not below 0."""
    if values[0] < -rounding:
        raise NumericalError(
            "an operator with a positive eigenvalue",
            f"a largest one of {values[0].item():.3g}",
            "the operator's negative",
        )
    return max(1, int((values > rounding).sum()))
