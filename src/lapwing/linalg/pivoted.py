"""Low-rank factors of a matrix from some of its columns."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.errors import NumericalError, ShapeError, check_count, check_positive
from lapwing.ground.probes import uniform
from lapwing.linalg.checks import finite
from lapwing.linalg.operators.base import Operator, check_square, in_float64, unit_vectors


def pivoted_cholesky(
    operator: Operator,
    diagonal: Float[Tensor, " d"],
    rank: int,
    *,
    random: bool = False,
    block: int = 32,
    rtol: float = 1e-6,
    columns: Callable[[Int[Tensor, " b"]], Float[Tensor, "d b"]] | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Float[Tensor, "d r"], Int[Tensor, " p"]]:
    """A factor ``L`` of a positive semi-definite matrix, ``L Lᵀ ≈ A``, exact on the columns of ``A`` it chose.

    Each pivot is a largest entry of the residual diagonal ``diag(A - L Lᵀ)`` (Harbrecht, Peters & Schneider 2012), or a
    random one, with probability in proportion to it: on average that comes near the best factor of its rank where the
    greedy choice can be misled by outliers (Chen, Epperly, Tropp & Webber 2023).

    Columns come in blocks, as one product with a block of unit vectors costs less than its columns one by one. A pivot
    proposed for a block is kept where its residual has not fallen below the share ``u`` of what it was when it was
    proposed: with a random ``u``, uniform on (0, 1), the pivots are distributed as if they had been chosen one by one
    (Epperly, Tropp & Webber 2024); the greedy choice takes ``u = 1/2``.

    Args:
        operator: Symmetric positive semi-definite ``A``, ``[d, d]``.
        diagonal: Its diagonal ``[d]``. An approximate one costs quality of the pivots, not validity of the factor.
        rank: Columns of ``L`` at most.
        random: Whether pivots are drawn, or the largest.
        block: Pivots proposed together; 1 for the algorithms as they were first stated.
        rtol: Stop when the residual trace is at most this times the trace.
        columns: Columns of ``A``, where they cost less than products with unit vectors.
        generator: Source of the pivots.

    Returns:
        ``L``, in the operator's dtype; fewer than ``rank`` columns where the tolerance was met, or ``A`` is exhausted.
        And the pivots, in the order in which they were chosen, none twice.

    Raises:
        ShapeError: ``A`` is not square, or the diagonal does not fit.
        ConfigError: An argument is not positive.
        NumericalError: The diagonal has a negative entry, or a product is not finite.

    Cost: ``block`` columns, or a product with so many, for every block, whatever is kept of it; ``d rank²`` flops;
    ``8 d (rank + 4 block)`` bytes.

    Example:
        >>> from lapwing.linalg import Diagonal
        >>> factor, pivots = pivoted_cholesky(Diagonal(torch.tensor([1.0, 9.0, 4.0])), torch.tensor([1.0, 9.0, 4.0]), 2)
        >>> factor.tolist(), pivots.tolist()
        ([[0.0, 0.0], [3.0, 0.0], [0.0, 2.0]], [1, 2])
    """
    size = check_square(operator)
    product = in_float64(operator)
    check_count("rank", rank)
    check_count("block", block)
    check_positive("rtol", rtol)
    left = _checked(diagonal, size).to(product.like)
    trace = left.sum().item()
    rounding = 10 * torch.finfo(operator.dtype).eps * left.max().item()
    factor = left.new_zeros(size, min(rank, size))
    filled = 0
    chosen: list[int] = []

    def multiplied(index: Tensor) -> Tensor:
        return product @ unit_vectors(index, size, left)

    while filled < factor.shape[1] and left.sum() > rtol * trace and left.max() > rounding:
        width = min(block, factor.shape[1] - filled)
        columns_so_far = factor[:, :filled]
        proposed = _drawn(left, width, generator) if random else left.topk(width).indices
        shares = uniform([width], like=left, generator=generator) if random else left.new_full((width,), 0.5)
        pivots, where = proposed.unique(return_inverse=True)
        rest = finite((columns or multiplied)(pivots).to(left)) - columns_so_far @ columns_so_far[pivots].mT
        kept, triangle = _accepted(rest[proposed][:, where], shares, rounding)
        added = torch.linalg.solve_triangular(triangle, rest[:, where[kept]].mT, upper=False).mT
        factor[:, filled : filled + len(kept)] = added
        filled += len(kept)
        chosen += proposed[kept].tolist()
        spent = rest[proposed, where] <= rounding  # nothing is left there, whatever the diagonal promised
        left = (left - added.square().sum(1)).clamp(min=0.0)
        left[proposed[kept]] = left[proposed[spent]] = 0.0
    found = factor[:, : max(1, filled)].to(operator.device, operator.dtype)
    return found, torch.tensor(chosen, dtype=torch.long, device=operator.device)


def _accepted(
    residual: Float[Tensor, "b b"], shares: Float[Tensor, " b"], rounding: float
) -> tuple[list[int], Float[Tensor, "c c"]]:
    """The pivots kept of a block, in order, and the Cholesky factor of their residual matrix."""
    remaining = residual.cpu()
    proposed = residual.diagonal().cpu().clone()
    kept: list[int] = []
    columns: list[Tensor] = []
    for i, share in enumerate(shares.tolist()):
        pivot = remaining[i, i].item()
        if pivot > max(share * proposed[i].item(), rounding):
            column = remaining[:, i] / pivot**0.5
            remaining = remaining - torch.outer(column, column)
            kept.append(i)
            columns.append(column)
    triangle = torch.stack(columns, 1)[kept].tril() if kept else remaining[:0, :0]
    return kept, triangle.to(residual)


def _drawn(weights: Float[Tensor, " d"], count: int, generator: torch.Generator | None) -> Int[Tensor, " b"]:
    """Indices drawn in proportion to weights, with replacement."""
    cumulated = weights.cumsum(0)
    targets = uniform([count], like=weights, generator=generator) * cumulated[-1]
    return torch.searchsorted(cumulated, targets).clamp(max=len(weights) - 1)


def _checked(diagonal: Tensor, size: int) -> Tensor:
    """The diagonal, if it is one of a positive semi-definite matrix."""
    if diagonal.shape != (size,):
        raise ShapeError(f"the diagonal of the operator, [{size}]", f"shape {list(diagonal.shape)}", "A.diagonal()")
    if bool((finite(diagonal) < 0).any()):
        smallest = f"an entry of {diagonal.min().item():.3g}"
        raise NumericalError("a diagonal without negative entries", smallest, "the GGN rather than the Hessian")
    return diagonal.detach()
