"""``log det Λ / det A``, exactly, as a function of prior precisions and noise: forms that reuse one decomposition.

Λ = s G + A, A = α_g on the weights of group g, and s the noise precision relative to the one G was computed with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.errors import NumericalError
from lapwing.ground.precision import wide, wide_device
from lapwing.linalg import Dense, Structured, pivoted_cholesky
from lapwing.linalg.checks import positive
from lapwing.linalg.operators.eigenbasis import decompose, semidefinite

EIGENVALUES = 2**16
"""Eigenvalues taken at a time: few enough to stay in a processor's cache."""

LARGE = 512
"""Rows of a dense curvature from which its rank is looked at: all eigenvalues of fewer take a tenth of a second."""

ROUNDING = 1e-14
"""What is rounding of the trace of a curvature in float64, over it."""

TERMS = 64
"""Terms of a sum of few, whose rounding grows with their number."""


@final
@dataclass(frozen=True, eq=False)
class Spectrum:
    """``log det Λ / det A`` where G commutes with A: a sum over eigenvalues, each belonging to one group.

    Args:
        eigenvalues: Eigenvalues of G, or of its Gram matrix: zeros may be left out.
        group: Group of each.
    """

    eigenvalues: Float[Tensor, " m"]
    group: Int[Tensor, " m"]

    def log_det_ratio(self, precisions: Float[Tensor, " g"], scale: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """``sum log(1 + s λ / α)``; refused where the sum of an indefinite G and A is not positive definite."""
        parts: list[Tensor] = []
        for values, own, _ in self._parts(precisions):
            ratios = scale * values / own
            positive(1 + ratios.detach())
            parts.append(torch.log1p(ratios).sum())
        return torch.stack(parts).sum()

    def determined(
        self, precisions: Float[Tensor, " g"], scale: Float[Tensor, ""]
    ) -> tuple[Float[Tensor, " g"], Float[Tensor, " g"]]:
        """``γ_g = Σ t`` and ``Σ t (1 - t)`` with ``t = s λ / (α + s λ)``; refused as the log determinant is."""
        gamma = torch.zeros_like(precisions)
        slope = torch.zeros_like(precisions)
        for values, own, group in self._parts(precisions):
            scaled = scale * values
            t = scaled / positive(scaled + own)
            _add_by_group(gamma, t, group)
            _add_by_group(slope, t * (1 - t), group)
        return gamma, slope

    def effective_dimensions(self, precisions: Float[Tensor, " g"], scale: Float[Tensor, ""]) -> Float[Tensor, " g"]:
        """``γ_g = d_g - α_g tr(Λ⁻¹)_g``: directions of each group the data determined (MacKay 1992, equation 4.9)."""
        return self.determined(precisions.detach(), scale.detach())[0]

    def _parts(self, precisions: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Some eigenvalues at a time, the precision that belongs to each, and its group."""
        for values, group in zip(self.eigenvalues.split(EIGENVALUES), self.group.split(EIGENVALUES), strict=True):
            own = precisions if len(precisions) == 1 else precisions.gather(0, group)
            yield values, own, group


def _add_by_group(total: Float[Tensor, " g"], values: Float[Tensor, " m"], group: Int[Tensor, " m"]) -> None:
    """Add values to the total of the group of each, in place."""
    if len(total) == 1:
        total += values.sum()
    else:
        total.index_add_(0, group, values)


@final
@dataclass(frozen=True, eq=False)
class Determinant:
    """``log det Λ / det A = log det(I + s M)`` for an M that depends on the precisions: one Cholesky a call.

    Args:
        whitened: M, from the precision of each group.
        curvature: G, where it is known as a matrix, which may be indefinite; else M has no negative eigenvalues.
    """

    whitened: Callable[[Float[Tensor, " g"]], Float[Tensor, "m m"]]
    curvature: Float[Tensor, "d d"] | None = None

    def log_det_ratio(self, precisions: Float[Tensor, " g"], scale: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """``log det(I + s M)``."""
        return log_det_one_plus(scale * self.whitened(precisions))

    def effective_dimensions(self, precisions: Float[Tensor, " g"], scale: Float[Tensor, ""]) -> Float[Tensor, " g"]:
        """See ``Spectrum.effective_dimensions``; minus the derivative in the log precisions."""
        return _minus_log_derivative(self.log_det_ratio, precisions, scale)

    @classmethod
    def of_grams(cls, matrices: Float[Tensor, "g m m"]) -> Determinant:
        """For the tangent-kernel Gram matrices ``K_g = Sᵀ J_g J_gᵀ S`` of each group: ``M = Σ_g K_g / α_g``."""

        def whitened(precisions: Float[Tensor, " g"]) -> Float[Tensor, "m m"]:
            return torch.einsum("g,gmn->mn", 1.0 / precisions, matrices)

        return cls(whitened)


@final
@dataclass(frozen=True, eq=False)
class Recomputed:
    """``log det Λ / det A`` of a curvature whose sums with A are no sums of matrices: Λ is factored at every call.

    Args:
        curvature: What A is added to.
        group: Group of each weight.
        relative: Precision of each weight relative to its group's; ``None`` for 1.
    """

    curvature: Structured
    group: Int[Tensor, " d"]
    relative: Float[Tensor, " d"] | None

    def log_det_ratio(self, precisions: Float[Tensor, " g"], scale: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """``log det Λ - log det A``."""
        prior = precisions[self.group]
        if self.relative is not None:
            prior = prior * self.relative
        precision = self.curvature.scaled(scale).plus_diagonal(prior.to(self.curvature.dtype))
        return precision.logdet() - prior.log().sum()

    def effective_dimensions(self, precisions: Float[Tensor, " g"], scale: Float[Tensor, ""]) -> Float[Tensor, " g"]:
        """See ``Spectrum.effective_dimensions``; minus the derivative in the log precisions."""
        return _minus_log_derivative(self.log_det_ratio, precisions, scale)


def _minus_log_derivative(
    ratio: Callable[[Tensor, Tensor], Tensor], precisions: Float[Tensor, " g"], scale: Float[Tensor, ""]
) -> Float[Tensor, " g"]:
    log_precisions = precisions.detach().log().requires_grad_()
    with torch.enable_grad():
        value = ratio(log_precisions.exp(), scale.detach())
        (gradient,) = torch.autograd.grad(value, log_precisions)
    return -gradient


@final
@dataclass(frozen=True, eq=False)
class ComplexityDifference:
    """``log det Λ / det(A + G₀)`` where earlier data said G₀: what the later data alone determined is charged for.

    Args:
        whole: ``log det Λ / det A``.
        earlier: ``log det(A + G₀) / det A``, in which the noise of the later data has no part.
    """

    whole: Spectrum | Determinant | Recomputed
    earlier: Spectrum | Determinant | Recomputed

    def log_det_ratio(self, precisions: Float[Tensor, " g"], scale: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """The difference of both."""
        earlier = self.earlier.log_det_ratio(precisions, torch.ones_like(scale))
        return self.whole.log_det_ratio(precisions, scale) - earlier

    def effective_dimensions(self, precisions: Float[Tensor, " g"], scale: Float[Tensor, ""]) -> Float[Tensor, " g"]:
        """See ``Spectrum.effective_dimensions``; the difference of both."""
        earlier = self.earlier.effective_dimensions(precisions, torch.ones_like(scale))
        return self.whole.effective_dimensions(precisions, scale) - earlier


Complexity: TypeAlias = Spectrum | Determinant | Recomputed | ComplexityDifference
"""What the evidence charges for the directions the data determined."""


def complexity_of(
    curvature: Structured,
    group: Int[Tensor, " d"],
    relative: Float[Tensor, " d"] | None = None,
    *,
    large: int = LARGE,
) -> Spectrum | Determinant | Recomputed:
    """The cheapest exact form of ``log det Λ / det A`` for a structure and a grouping of the weights.

    Args:
        curvature: G, on the flat vector of weights.
        group: Group of each weight.
        relative: r, for weights whose prior precision is r times that of their group; ``None`` for 1.
        large: Rows of a dense curvature from which its rank is looked at.

    Raises:
        UnsupportedError: If a block's structure has no exact sum with several precisions.
    """
    group = group.to(wide_device(curvature.device))
    if not curvature.shifts_exactly:
        return Recomputed(curvature, group, None if relative is None else relative.to(group.device))
    if relative is not None:
        curvature = in_units(curvature, relative.to(group.device))
    factor = thin_factor(curvature, large)
    if factor is not None:
        return complexity_of_factor(factor, group)
    commuting = curvature.eigenvalues_by_group(group)
    if commuting is not None:
        return spectrum_of(*commuting)
    blocks = [complexity_of(block, group[index.to(group.device)]) for block, index in curvature.indexed_blocks]
    spectra = [block for block in blocks if isinstance(block, Spectrum)]
    if blocks and len(spectra) == len(blocks):
        return Spectrum(torch.cat([part.eigenvalues for part in spectra]), torch.cat([part.group for part in spectra]))
    curvature.check_plus_diagonal((1.0 + group).to(curvature.diagonal()))
    dense = semidefinite(curvature.dense(), curvature.relative_rounding)

    def whitened(precisions: Float[Tensor, " g"]) -> Float[Tensor, "d d"]:
        root = precisions[group].rsqrt()
        return root[:, None] * dense * root

    return Determinant(whitened, dense)


def spectrum_of(values: Float[Tensor, " d"], group: Int[Tensor, " d"]) -> Spectrum:
    """The eigenvalues that are not 0."""
    nonzero = values != 0
    if bool(nonzero.all()):
        return Spectrum(values, group)
    return Spectrum(values[nonzero], group[nonzero])


def complexity_of_factor(factor: Float[Tensor, "d r"], group: Int[Tensor, " d"]) -> Spectrum | Determinant:
    """``log det(I + s A⁻¹ L Lᵀ) = log det(I + s Lᵀ A⁻¹ L)``, r × r."""
    if bool((group == group[0]).all()):
        values = torch.linalg.svdvals(factor).square()
        return Spectrum(values, group[:1].clone().expand(len(values)))

    def whitened(precisions: Float[Tensor, " g"]) -> Float[Tensor, "r r"]:
        scaled = precisions[group].rsqrt()[:, None] * factor
        return scaled.mT @ scaled

    return Determinant(whitened)


def thin_factor(curvature: Structured, large: int = LARGE) -> Float[Tensor, "d r"] | None:
    """L in float64 with ``L Lᵀ = G`` to rounding and few columns; ``None`` where there is none.

    Few are at most half as many as rows; a low-rank curvature has those it has. The curvature of few data is of low
    rank, however it is held: that of 20 examples of three classes has rank 40.

    Cost:
        Of a dense matrix of ``large`` rows or more ``d r²`` multiplications, at most ``d³ / 4``, where all of its
        eigenvalues take ``9 d³``.
    """
    if curvature.known_root is not None:
        return curvature.known_root
    matrix = curvature.plain_entries
    if matrix is None or len(matrix) < large:
        return None
    diagonal = matrix.diagonal()
    if bool((diagonal < 0).any()):
        return None
    factor, _ = pivoted_cholesky(
        curvature, diagonal, len(matrix) // 2, block=64, rtol=ROUNDING, columns=lambda index: matrix[:, index]
    )
    rest = float((matrix - factor @ factor.mT).abs().max())
    rounding = torch.finfo(matrix.dtype).eps * max(factor.shape[1], TERMS) * float(diagonal.max())
    return factor if rest <= rounding else None


def complexity_of_compression(
    changes: Float[Tensor, "d k"],
    curvature: Float[Tensor, "k k"],
    group: Int[Tensor, " d"],
    relative: Float[Tensor, " d"] | None = None,
) -> Complexity:
    """The cheapest exact form for a G compressed on the span of W: ``log det(N + s S) / det N`` with ``N = Wᵀ A W``.

    It is a lower bound of that of G itself, whatever W: eigenvalues of a compression interlace.

    Args:
        changes: W.
        curvature: ``S = Wᵀ G W``, float64.
        group: Group of each weight.
        relative: Precision of each weight relative to its group's; ``None`` for 1.

    Cost:
        Each time it is asked for ``d k²`` multiplications; with one group, once.
    """
    group = group.to(curvature.device)
    relative = None if relative is None else relative.to(curvature.device)

    def whitened(precisions: Float[Tensor, " g"]) -> Float[Tensor, "k k"]:
        prior = precisions[group] if relative is None else precisions[group] * relative
        lower = metric_root(changes, prior).mT
        half = torch.linalg.solve_triangular(lower, curvature, upper=False)
        matrix = torch.linalg.solve_triangular(lower, half.mT, upper=False)
        return (matrix + matrix.mT) / 2

    if not bool((group == group[0]).all()):
        return Determinant(whitened)
    eigenvalues = decompose(whitened(curvature.new_ones(1))).values
    return Spectrum(eigenvalues, torch.zeros(len(eigenvalues), dtype=torch.long, device=eigenvalues.device))


def in_units(curvature: Structured, relative: Float[Tensor, " d"]) -> Structured:
    """``R^-½ G R^-½`` for a diagonal R: the curvature in units in which a prior precision R is 1.

    Raises:
        UnsupportedError: If the sum of the structure and R has no exact form.
    """
    structured = curvature.in_units(relative)
    if structured is not None:
        return structured
    curvature.check_plus_diagonal(relative.to(curvature.device, curvature.dtype))
    return Dense(curvature.dense()).in_units(relative)


def metric_root(changes: Float[Tensor, "d k"], prior: Float[Tensor, " d"]) -> Float[Tensor, "k k"]:
    """Triangular ``R`` with ``Rᵀ R = Wᵀ A W``, float64: that product would be singular where a diagonal A is not."""
    return torch.linalg.qr(wide(prior).sqrt()[:, None] * wide(changes)).R


def log_det_one_plus(matrix: Float[Tensor, "m m"]) -> Float[Tensor, ""]:
    """``log det(I + M)`` of a positive semi-definite M, differentiable.

    Raises:
        NumericalError: If the factorisation fails.
    """
    eye = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    factor, failed = torch.linalg.cholesky_ex(eye + matrix)
    if bool(failed):
        got = f"pivot {int(failed)}, which is not positive"
        raise NumericalError("a positive definite precision", got, "a larger prior precision, or float64")
    return 2.0 * factor.diagonal().log().sum()
