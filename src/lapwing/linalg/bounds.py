"""Bounds on a log determinant from traces."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ConfigError, NumericalError
from lapwing.ground.precision import wide_like


def shifted_log_determinant_upper(
    trace: float | Tensor,
    square: float | Tensor,
    size: int,
    shift: float | Tensor,
    *,
    rank: int | None = None,
    largest: float | Tensor | None = None,
) -> Float[Tensor, ""]:
    """An upper bound on ``log det(G + α I)`` for ``G`` of low rank (Brack 2023, equations 3.16 to 3.18).

        B_K(tr G + K α, tr G² + 2 α tr G + K α², β) + (n - K) log α,   β = λ_max(G) + α

    with ``B_n(μ₁, μ₂, β)`` the two-node Gauss-Radau rule for ``tr log A`` with a node at ``β`` (Bai & Golub 1997;
    Brack 2023, equation 3.11). With ``s₁ = n β - μ₁``, ``s₂ = n β² - 2 β μ₁ + μ₂`` and ``x = s₂ / (β s₁)`` the other
    node is ``t = β (1 - x)``, of weight ``s₁² / s₂``, so that

        log det A <= B_n = n log β + (s₁ / β) log(1 - x) / x,

    which solves no 2 x 2 system and stays exact where ``A`` has one eigenvalue or two. It is a bound for any ``K`` no
    less than the rank; the larger, the looser. Traces that were estimated can be those of no matrix: ``tr G²`` is taken
    back to between ``(tr G)² / K`` and ``λ_max tr G``, which keeps the free node at ``α`` or above.

    Args:
        trace: ``tr G``; gradients flow into tensors, here and in the others.
        square: ``tr G²``.
        size: ``n``.
        shift: ``α > 0``, such as a prior precision.
        rank: ``K``; None for ``n``.
        largest: A bound on the eigenvalues of ``G``; None for ``√tr G²``, tighter than the source's ``tr G``.

    Returns:
        The bound, nats, float64.

    Raises:
        ConfigError: The rank is not between 1 and ``n``.
        NumericalError: A trace is negative or not finite, or the shift not positive.

    Example:
        >>> shifted_log_determinant_upper(4.0, 16.0, 3, 1.0, rank=1).exp()  # eigenvalues 5, 1, 1
        tensor(5.0000, dtype=torch.float64)
    """
    rank = size if rank is None else rank
    if not 1 <= rank <= size:
        raise ConfigError(f"a rank from 1 to the size {size}", f"{rank}", "rank=None for the size")
    device = next((value.device for value in (trace, square, shift) if isinstance(value, Tensor)), None)
    kind = wide_like(torch.device("cpu") if device is None else device)
    trace = torch.as_tensor(trace, **kind)
    square = torch.as_tensor(square, **kind)
    shift = torch.as_tensor(shift, **kind)
    if not bool((trace >= 0) & (square >= 0) & (shift > 0) & (trace + square + shift).isfinite()):
        raise NumericalError(
            "traces of a positive semi-definite G and a positive shift",
            f"tr G = {trace:.6g}, tr G² = {square:.6g}, shift {shift:.6g}",
            "more probes if the traces were estimated, or a wider end of the spectrum",
        )
    square = torch.maximum(square, trace.square() / rank)
    if largest is None:
        largest = torch.where(square > 0, square, 1.0).sqrt() * (square > 0)  # at 0 its gradient is 0
    top = torch.maximum(torch.as_tensor(largest, **kind), trace / rank)
    return _radau(trace, torch.minimum(square, top * trace), rank, top, shift) + (size - rank) * shift.log()


def _radau(trace: Tensor, square: Tensor, size: int, end: Tensor, shift: Tensor) -> Float[Tensor, ""]:
    """``B_K`` for ``G + α I``, from ``tr G``, ``tr G²`` and the upper end of the spectrum of ``G``.

    ``1 - x = t / β`` is the better half of the way as ``x`` nears 1; the limit is ``n log β`` where ``s₁ = 0``.
    """
    node = end + shift
    first = size * end - trace
    second = size * end.square() - 2 * end * trace + square
    apart = first.abs() > torch.finfo(torch.float64).eps * size * end
    divisor = torch.where(apart, first, 1.0)
    x = torch.where(apart, second / divisor / node, 0.0)
    free = torch.where(apart, shift + (end * trace - square) / divisor, node).clamp(min=1e-12 * node)
    small = x.abs() < 1e-8
    large = x > 0.5
    safe = torch.where(small | large, 0.25, x)
    ratio = torch.where(large, (free / node).log() / torch.where(large, x, 1.0), torch.log1p(-safe) / safe)
    return size * node.log() + first / node * torch.where(small, -1 - x / 2, ratio)
