"""Functions of a symmetric operator from its products: applied to vectors, and the log-determinant; a bound on that."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ConfigError, NumericalError, check_count, check_positive
from lapwing.ground.probes import rademacher
from lapwing.ground.results import Estimate, Solution, joined
from lapwing.linalg.lanczos import Function, Krylov, lanczos
from lapwing.linalg.operator import Operator, check_operand, check_square, congruence
from lapwing.linalg.structured import Structured

MEMORY = 2**31
"""Bytes that the bases of the columns a function is applied to may take (2 GiB)."""


def apply_function(
    operator: Operator,
    b: Float[Tensor, "d *k"],
    function: Function,
    *,
    steps: int = 100,
    rtol: float = 1e-6,
    max_bytes: int = MEMORY,
) -> Solution:
    """``f(A) b`` from the Krylov space of each column.

        f(A) b ≈ |b| Q f(T) e₁                                             (Higham 2008, section 13.2)

    The error is at most ``2 |b|`` times that of the best polynomial of degree below ``j`` for ``f`` between the ends of
    the spectrum.

    Args:
        operator: Symmetric ``A``, ``[d, d]``.
        b: ``[d]`` or ``[d, k]``, in the operator's dtype.
        function: ``f``, elementwise on float64 tensors; called at Ritz values, which lie within the spectrum.
        steps: Steps at most.
        rtol: Stop when the last third of the steps changed every column by no more than this, relative to it.
        max_bytes: What the bases of the columns may take.

    Returns:
        ``f(A) b``, shaped as ``b``; ``residual`` is that relative change, which bounds the error wherever it
        shrinks at least as fast as one over the square of the steps.

    Raises:
        ShapeError: ``A`` is not square, or ``b`` does not fit.
        ConfigError: ``steps`` is less than 1 or ``rtol`` not positive.
        NumericalError: A product, or ``f`` at a Ritz value, is not finite.

    Cost: one product with ``k`` columns a step; ``8 d steps`` bytes a column, of as many columns at a time as fit
    ``max_bytes``: where not all do, each group of them makes its own products.

    Example:
        >>> from lapwing.linalg import Diagonal
        >>> squares = Diagonal(torch.tensor([1.0, 4.0, 9.0]))
        >>> apply_function(squares, torch.ones(3), torch.sqrt).value
        tensor([1., 2., 3.])
    """
    check_positive("rtol", rtol)
    check_operand(operator, b, check_square(operator))
    columns = b if b.ndim == 2 else b[:, None]
    together = max(1, max_bytes // (8 * len(b) * min(steps, len(b))))
    parts = [_applied(operator, part, function, steps, rtol) for part in columns.split(together, dim=1)]
    whole = joined(parts)
    return replace(whole, value=whole.value.reshape(b.shape))


def _applied(operator: Operator, b: Float[Tensor, "d k"], function: Function, steps: int, rtol: float) -> Solution:
    krylov = lanczos(operator, b, steps, until=lambda krylov: bool((_change(krylov, function) <= rtol).all()))
    change = _change(krylov, function)
    assert krylov.basis is not None
    coefficients = krylov.length[:, None] * krylov.coefficients(function)
    return Solution(
        (coefficients[:, None] @ krylov.basis)[:, 0].mT.to(operator.dtype),
        change,
        krylov.steps,
        krylov.steps * len(krylov.length),
        "converged" if bool((change <= rtol).all()) else "iterations",
    )


def _change(krylov: Krylov, function: Function) -> Float[Tensor, " k"]:
    """How much ``f(T) e₁`` changed over the last third of the steps, relative to its length."""
    now = krylov.coefficients(function)
    before = krylov.earlier.coefficients(function) if krylov.steps > 1 else now[:, :0]
    if not bool(now.isfinite().all()):
        smallest, largest = krylov.ritz[0].min().item(), krylov.ritz[0].max().item()
        raise NumericalError(
            "a function that is finite on the spectrum",
            f"NaN or infinity at Ritz values from {smallest:.3g} to {largest:.3g}",
            "a positive definite operator for logarithms and inverse roots",
        )
    size = torch.linalg.vector_norm(now, dim=1)
    before = torch.nn.functional.pad(before, (0, now.shape[1] - before.shape[1]))
    change = torch.linalg.vector_norm(now - before, dim=1)
    return torch.where(krylov.exhausted | (size == 0), 0.0, change / torch.where(size == 0, 1.0, size))


def log_determinant(
    operator: Operator,
    *,
    samples: int = 32,
    steps: int = 200,
    bias: float = 0.1,
    preconditioner: Structured | None = None,
    generator: torch.Generator | None = None,
) -> Estimate:
    """``log det A`` from products: an average over probes, each a Gauss quadrature.

        log det A = log det P + tr log(Wᵀ A W),   W Wᵀ = P⁻¹,
        tr log M ≈ mean of |z|² Σ τ² log θ over probes z                             (Ubaru, Chen & Saad 2017)

    The probes are random signs: of all probes with independent entries they have the least variance,
    ``2 Σ_{i≠j} (log M)_ij²``, none where ``M`` is diagonal. Gauss quadratures of the logarithm err upwards, and by
    less with each step. All probes go on until the last third of the steps moved their mean by less than ``bias``
    standard errors; where ``steps`` do not suffice for that, the standard error grows by what that third moved it.

    Args:
        operator: Symmetric positive definite ``A``, ``[d, d]``.
        samples: Probes, at least 2. As with any mean, 1.96 standard errors cover less than 95 % where there are few:
            93 % with 16, 94 % with 32.
        steps: Lanczos steps at most.
        bias: Quadrature error to allow, in standard errors.
        preconditioner: ``P``, near ``A``: the nearer, the smaller the variance and the fewer the steps.
        generator: Source of the probes.

    Returns:
        The estimate, nats. Its standard error is at least ``ε d``, with ``ε`` the relative rounding of the operator's
        dtype: where ``P`` is near ``A`` the probes agree with each other to less than their products are off.

    Raises:
        ShapeError: ``A`` is not square, or ``P`` does not fit.
        ConfigError: Fewer than 2 samples, no steps, or a bias that is not positive.
        NumericalError: A product is not finite, or ``A`` not positive definite.

    Cost: at most ``steps`` products with ``samples`` columns, each between one with ``W`` and one with ``Wᵀ``;
    ``24 d samples`` bytes.

    Example:
        >>> from lapwing.linalg import Diagonal
        >>> estimate = log_determinant(Diagonal(torch.tensor([1.0, 2.0, 4.0]).double()))
        >>> round(estimate.value, 6), round(estimate.stderr, 6)  # log 8
        (2.079442, 0.0)
    """
    check_count("samples", samples, 2)
    check_positive("bias", bias)
    exact, rounding = 0.0, torch.finfo(operator.dtype).eps * check_square(operator)
    if preconditioner is not None:
        exact = preconditioner.logdet().item()
        operator = congruence(operator, preconditioner.inverse_root())
    like = torch.empty(0, dtype=torch.float64, device=operator.device)
    probes = rademacher([operator.shape[0], samples], like=like, generator=generator)

    def found(krylov: Krylov) -> tuple[Estimate, bool]:
        now, before = (each.quadrature(_log) for each in (krylov, krylov.earlier))
        stderr, moved = float(now.std()) / samples**0.5, float((now - before).mean().abs())
        little = krylov.steps > 1 and moved <= bias * stderr + rounding
        converged = little or bool(krylov.exhausted.all())
        spread = stderr if converged else math.hypot(stderr, moved)
        return Estimate(exact + float(now.mean()), max(spread, rounding), samples), converged

    return found(lanczos(operator, probes, steps, reorthogonalise=False, until=lambda it: found(it)[1]))[0]


def _log(values: Tensor) -> Tensor:
    """The logarithm of Ritz values, refused where they are those of no positive definite operator."""
    if values.min() <= 0:
        raise NumericalError(
            "a positive definite operator",
            f"a Ritz value of {values.min().item():.3g} (largest {values.max().item():.3g})",
            "a larger prior precision, or products in float64 if that is beyond what theirs resolve",
        )
    return values.log()


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
    trace, square, shift = (torch.as_tensor(x, dtype=torch.float64, device=device) for x in (trace, square, shift))
    if not bool((trace >= 0) & (square >= 0) & (shift > 0) & (trace + square + shift).isfinite()):
        raise NumericalError(
            "traces of a positive semi-definite G and a positive shift",
            f"tr G = {trace:.6g}, tr G² = {square:.6g}, shift {shift:.6g}",
            "more probes if the traces were estimated, or a wider end of the spectrum",
        )
    square = torch.maximum(square, trace.square() / rank)
    if largest is None:
        largest = torch.where(square > 0, square, 1.0).sqrt() * (square > 0)  # at 0 its gradient is 0
    top = torch.maximum(torch.as_tensor(largest, dtype=torch.float64, device=square.device), trace / rank)
    return _radau(trace, torch.minimum(square, top * trace), rank, top, shift) + (size - rank) * shift.log()


def _radau(trace: Tensor, square: Tensor, size: int, end: Tensor, shift: Tensor) -> Float[Tensor, ""]:
    """``B_K`` for ``G + α I``, from ``tr G``, ``tr G²`` and the upper end of the spectrum of ``G``.

    ``1 - x = t / β`` is the better half of the way as ``x`` nears 1; the limit is ``n log β`` where ``s₁ = 0``.
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
