"""Bounds on a log-determinant from two traces and one end of the spectrum."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ConfigError, NumericalError

ROUNDING = 1e-6
"""How far from possible, relative to the largest, traces summed in float32 may be."""


def log_determinant_upper(
    trace: float | Tensor, square: float | Tensor, size: int, largest: float | Tensor
) -> Float[Tensor, ""]:
    """An upper bound on ``log det A`` (Bai & Golub 1997; Brack 2023, equation 3.11).

    The two-node Gauss-Radau rule for ``tr log A`` with a node at ``β``. With ``s₁ = tr(βI - A) = n β - μ₁``,
    ``s₂ = tr(βI - A)² = n β² - 2 β μ₁ + μ₂`` and ``x = s₂ / (β s₁)`` the other node is ``t = β (1 - x)``, of weight
    ``s₁² / s₂``, so that

        log det A <= n log β + (s₁ / β) log(1 - x) / x,

    which solves no 2 x 2 system and stays exact where ``A`` has one eigenvalue or two.

    Args:
        trace: ``μ₁ = tr A``; gradients flow into tensors, here and in the others.
        square: ``μ₂ = tr A²``.
        size: ``n``.
        largest: ``β``, no less than any eigenvalue. The closer, the tighter.

    Returns:
        The bound, nats, float64.

    Raises:
        NumericalError: No positive definite matrix has these traces and no larger eigenvalue.

    Example:
        >>> eigenvalues = torch.tensor([1.0, 2.0, 4.0])
        >>> bound = log_determinant_upper(eigenvalues.sum(), eigenvalues.square().sum(), 3, 4.0)
        >>> bool(bound > eigenvalues.log().sum())
        True
    """
    trace, square, largest = _checked(trace, square, size, largest)
    first = size * largest - trace
    if first < -ROUNDING * trace:
        raise _impossible("tr A of at most the size times the largest eigenvalue", f"{trace:.6g}, {size * largest:.6g}")
    if square >= largest * trace and first > ROUNDING * trace:  # t <= 0
        raise _impossible("tr A² below the largest eigenvalue times tr A", f"{square:.6g}, {largest * trace:.6g}")
    return _radau(trace, square, size, largest)


def log_determinant_lower(
    trace: float | Tensor, square: float | Tensor, size: int, smallest: float | Tensor
) -> Float[Tensor, ""]:
    """A lower bound on ``log det A``: the rule of ``log_determinant_upper`` with its node at the other end.

    Args:
        trace: ``μ₁ = tr A``; gradients flow into tensors, here and in the others.
        square: ``μ₂ = tr A²``.
        size: ``n``.
        smallest: ``a > 0``, no more than any eigenvalue.

    Returns:
        The bound, nats, float64.

    Raises:
        NumericalError: No matrix has these traces and no smaller eigenvalue.

    Example:
        >>> log_determinant_lower(3.0, 5.0, 2, 1.0).exp()  # eigenvalues 1 and 2
        tensor(2., dtype=torch.float64)
    """
    trace, square, smallest = _checked(trace, square, size, smallest)
    if size * smallest - trace > ROUNDING * trace:
        got = f"{trace:.6g}, {size * smallest:.6g}"
        raise _impossible("tr A of at least the size times the smallest eigenvalue", got)
    return _radau(trace, square, size, smallest)


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

    for any ``K`` no less than the rank; the larger, the looser. Below the rank it is no bound. Traces that were
    estimated can be those of no matrix: ``tr G²`` is taken back to between ``(tr G)² / K`` and ``λ_max tr G``, which
    keeps the free node at ``α`` or above.

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
    trace, square, shift = _semidefinite(trace, square, size, shift, rank)
    if largest is None:
        largest = torch.where(square > 0, square, 1.0).sqrt() * (square > 0)  # at 0 its gradient is 0
    top = torch.maximum(torch.as_tensor(largest, dtype=torch.float64, device=square.device), trace / rank)
    return _radau(trace, torch.minimum(square, top * trace), rank, top, shift) + (size - rank) * shift.log()


def shifted_log_determinant_lower(
    trace: float | Tensor, square: float | Tensor, size: int, shift: float | Tensor
) -> Float[Tensor, ""]:
    """A lower bound on ``log det(G + α I)``: the rule of ``shifted_log_determinant_upper`` with its node at ``α``.

        n log α + (tr G / α) log(1 + x) / x,   x = tr G² / (α tr G),

    whatever the rank of ``G``.

    Args:
        trace: ``tr G``; gradients flow into tensors, here and in the others.
        square: ``tr G²``.
        size: ``n``.
        shift: ``α > 0``.

    Returns:
        The bound, nats, float64.

    Raises:
        ConfigError: The size is less than 1.
        NumericalError: A trace is negative or not finite, or the shift not positive.

    Example:
        >>> shifted_log_determinant_lower(4.0, 16.0, 3, 1.0).exp()  # eigenvalues 5, 1, 1
        tensor(5.0000, dtype=torch.float64)
    """
    trace, square, shift = _semidefinite(trace, square, size, shift, size)
    return _radau(trace, square, size, torch.zeros_like(shift), shift)


def _radau(trace: Tensor, square: Tensor, size: int, end: Tensor, shift: Tensor | float = 0.0) -> Float[Tensor, ""]:
    """The rule for ``A + shift I``, from ``tr A``, ``tr A²`` and an end of the spectrum of ``A``.

    With ``x < 0`` for a node below the spectrum, in ``(0, 1)`` above it, where ``1 - x = t / β`` is the better half of
    the way as ``x`` nears 1; its limit is ``n log β`` where ``s₁ = 0``.
    """
    node, first = end + shift, size * end - trace
    second = size * end.square() - 2 * end * trace + square
    apart = first.abs() > torch.finfo(torch.float64).eps * size * end
    divisor = torch.where(apart, first, 1.0)
    x = torch.where(apart, second / divisor / node, 0.0)
    free = torch.where(apart, shift + (end * trace - square) / divisor, node).clamp(min=1e-12 * node)
    small, large = x.abs() < 1e-8, x > 0.5
    safe = torch.where(small | large, 0.25, x)
    ratio = torch.where(large, (free / node).log() / torch.where(large, x, 1.0), torch.log1p(-safe) / safe)
    return size * node.log() + first / node * torch.where(small, -1 - x / 2, ratio)


def _semidefinite(
    trace: float | Tensor, square: float | Tensor, size: int, shift: float | Tensor, rank: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The traces of a matrix of this rank, if necessary the nearest."""
    if not 1 <= rank <= size:
        raise ConfigError(f"a rank from 1 to the size {size}", f"{rank}", "rank=None for the size")
    trace, square, shift = _tensors(trace, square, shift)
    if not bool((trace >= 0) & (square >= 0) & (shift > 0) & (trace + square + shift).isfinite()):
        got = f"tr G = {trace:.6g}, tr G² = {square:.6g}, shift {shift:.6g}"
        raise _impossible("traces of a positive semi-definite G and a positive shift", got)
    return trace, torch.maximum(square, trace.square() / rank), shift


def _checked(
    trace: float | Tensor, square: float | Tensor, size: int, end: float | Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    trace, square, end = _tensors(trace, square, end)
    if size < 1:
        raise ConfigError("a size of at least 1", f"{size}", "size=len(A)")
    if not bool((trace > 0) & (end > 0) & (trace + square + end).isfinite()):
        got = f"tr A = {trace:.6g}, tr A² = {square:.6g}, end of the spectrum {end:.6g}"
        raise _impossible("finite traces and a positive end of the spectrum", got)
    if square * size < trace.square() * (1 - ROUNDING):
        got = f"tr A² = {square:.6g}, (tr A)² = {trace.square():.6g}, size {size}"
        raise _impossible("tr A² of at least (tr A)² over the size", got)
    return trace, square, end


def _tensors(*values: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    device = next((value.device for value in values if isinstance(value, Tensor)), None)
    first, second, third = (torch.as_tensor(value, dtype=torch.float64, device=device) for value in values)
    return first, second, third


def _impossible(expected: str, got: str) -> NumericalError:
    return NumericalError(expected, got, "more probes if the traces were estimated, or a wider end of the spectrum")
