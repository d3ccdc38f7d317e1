"""Lanczos' recurrence: a symmetric operator through the tridiagonal matrices of its Krylov spaces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias, final, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lapwing.ground.errors import NumericalError, ShapeError, check_count, check_option, check_positive
from lapwing.ground.results import Solution, joined
from lapwing.linalg.operator import Operator, check_operand, check_square, in_float64

MEMORY = 2**31
"""Bytes that the bases of the columns a function is applied to may take (2 GiB)."""

Reorthogonalise: TypeAlias = Literal["full", "none"]

Function: TypeAlias = Callable[[Tensor], Tensor]


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

    def first(self, steps: int) -> Krylov:
        """The same recurrence after fewer steps."""
        basis = None if self.basis is None else self.basis[:, :steps]
        return Krylov(self.alpha[:, :steps], self.beta[:, :steps], self.length, basis)

    @cached_property
    def earlier(self) -> Krylov:
        """The recurrence after two thirds of its steps: what it has to agree with to have converged."""
        return self.first(max(1, 2 * self.steps // 3))

    @cached_property
    def ritz(self) -> tuple[Float[Tensor, "k j"], Float[Tensor, "k j j"]]:
        """Eigenvalues, ascending, and eigenvectors (in columns) of ``T``; found on the CPU: they are small."""
        side = self.beta[:, :-1]
        tridiagonal = self.alpha.diag_embed() + side.diag_embed(1) + side.diag_embed(-1)
        if not bool(tridiagonal.isfinite().all()):
            raise NumericalError("finite products", "NaN or infinity", "finite weights, data and probes")
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
    reorthogonalise: Reorthogonalise = "full",
    until: Callable[[Krylov], bool] | None = None,
) -> Krylov:
    """Lanczos' recurrence from every column of ``start``, each by itself, one block product a step.

        β_j q_{j+1} = A q_j - α_j q_j - β_{j-1} q_{j-1},   α_j = q_jᵀ A q_j            (Lanczos 1950; Paige 1972)

    Args:
        operator: Symmetric ``A``, ``[d, d]``.
        start: One start ``[d]`` or several ``[d, k]``, in the operator's dtype or float64.
        steps: Steps at most; fewer where every Krylov space is exhausted.
        reorthogonalise: "full" keeps the basis and makes each new vector orthogonal to all of it, twice. "none"
            keeps three blocks: converged Ritz values return as copies, which quadratures and extreme values bear.
        until: Asked after each step, later after each tenth more, whether to stop there.

    Returns:
        The recurrence, float64.

    Raises:
        ShapeError: ``A`` is not square, or ``start`` does not fit.
        ConfigError: ``steps`` is less than 1.
        NumericalError: A product is not finite.

    Cost: ``j`` products with ``k`` columns; "full" adds ``2 d j²`` flops a column and holds ``8 d j k`` bytes, "none"
    ``24 d k`` bytes.

    Example:
        >>> from lapwing.linalg import Diagonal
        >>> krylov = lanczos(Diagonal(torch.tensor([1.0, 2.0, 4.0])), torch.ones(3), steps=3)
        >>> krylov.ritz[0].round(decimals=6).tolist()
        [[1.0, 2.0, 4.0]]
    """
    size = check_square(operator)
    check_count("steps", steps)
    check_option("reorthogonalise", reorthogonalise, get_args(Reorthogonalise))
    product, start = in_float64(operator), start.detach().double()
    block = check_operand(product, start if start.ndim == 2 else start[:, None], size)
    if block.shape[1] == 0:
        raise ShapeError(f"at least one start, [{size}] or [{size}, k]", f"shape {list(start.shape)}", "k >= 1")
    full = reorthogonalise == "full"
    krylov = None
    for krylov in _recurrence(product, block, min(steps, size) if full else steps, full, operator.dtype):
        if until is not None and until(krylov):
            break
    assert krylov is not None
    return krylov


def _recurrence(
    product: Operator, start: Float[Tensor, "d k"], steps: int, keep: bool, dtype: torch.dtype
) -> Iterator[Krylov]:
    """What there is after each step, later after each tenth more, and at the end."""
    size, k = start.shape
    rounding = 10 * torch.finfo(dtype).eps  # the products resolve no more
    length = torch.linalg.vector_norm(start, dim=0)
    alive = length > 0
    q = (start / torch.where(alive, length, 1.0)).mT
    previous = torch.zeros_like(q)
    alpha, beta = q.new_zeros(k, steps), q.new_zeros(k, steps)
    basis = q.new_empty(k, steps, size) if keep else None
    scale, step_back, due = q.new_zeros(k), q.new_zeros(k), 1
    for j in range(steps):
        w = (product @ q.mT).mT - step_back[:, None] * previous
        along = (q * w).sum(1)
        w = w - along[:, None] * q
        if basis is not None:
            basis[:, j] = q
            for _ in range(2):
                known = basis[:, : j + 1]
                w = torch.baddbmm(w[:, None], (known @ w[..., None]).mT, known, alpha=-1)[:, 0]
        forward = torch.linalg.vector_norm(w, dim=1)
        # An exhausted start repeats its first Rayleigh quotient: inside the spectrum, of weight 0.
        alpha[:, j] = torch.where(alive, along, alpha[:, 0] if j else torch.ones_like(along))
        scale = torch.maximum(scale, along.abs() + forward)
        alive = alive & ~(forward <= rounding * scale)
        step_back = beta[:, j] = torch.where(alive, forward, 0.0)
        previous, q = q, torch.where(alive[:, None], w / forward[:, None], 0.0)
        over = j + 1 == steps or not bool(alive.any())
        if over or j + 1 >= due:
            due = j + 2 + j // 10
            yield Krylov(alpha[:, : j + 1], beta[:, : j + 1], length, None if basis is None else basis[:, : j + 1])
        if over:
            return


def apply_function(
    operator: Operator,
    b: Float[Tensor, "d *k"],
    function: Function,
    *,
    steps: int = 100,
    rtol: float = 1e-6,
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

    Returns:
        ``f(A) b``, shaped as ``b``; ``residual`` is that relative change, which bounds the error wherever it
        shrinks at least as fast as one over the square of the steps.

    Raises:
        ShapeError: ``A`` is not square, or ``b`` does not fit.
        ConfigError: ``steps`` is less than 1 or ``rtol`` not positive.
        NumericalError: A product, or ``f`` at a Ritz value, is not finite.

    Cost: one product with ``k`` columns a step; ``8 d steps`` bytes a column, of as many columns at a time as fit
    ``MEMORY``: where not all do, each group of them makes its own products.

    Example:
        >>> from lapwing.linalg import Diagonal
        >>> squares = Diagonal(torch.tensor([1.0, 4.0, 9.0]))
        >>> apply_function(squares, torch.ones(3), torch.sqrt).value
        tensor([1., 2., 3.])
    """
    check_positive("rtol", rtol)
    check_operand(operator, b, check_square(operator))
    columns = b if b.ndim == 2 else b[:, None]
    together = max(1, MEMORY // (8 * len(b) * min(steps, len(b))))
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
