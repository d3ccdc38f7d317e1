"""The evidence of a Gaussian linear model as a function of prior precisions and noise, reusing one eigendecomposition.

    log p(y) = log p(y | θ*) - ½ Σ_g α_g |θ_g|² - ½ log det Λ / det A          (Immer et al. 2021, equation 9)

with Λ = s G + A, A = α_g on the weights of group g, and s the noise precision relative to the one G was computed with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.errors import NumericalError
from lapwing.linalg import BlockDiagonal, Dense, Diagonal, LowRank, Structured, pivoted_cholesky
from lapwing.linalg.spectral import decompose
from lapwing.linalg.structured import positive

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
        gamma, slope = torch.zeros_like(precisions), torch.zeros_like(precisions)
        for values, own, group in self._parts(precisions):
            scaled = scale * values
            t = scaled / positive(scaled + own)
            for total, part in ((gamma, t), (slope, t * (1 - t))):
                if len(precisions) == 1:
                    total += part.sum()
                else:
                    total.index_add_(0, group, part)
        return gamma, slope

    def _parts(self, precisions: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Some eigenvalues at a time, the precision that belongs to each, and its group."""
        for values, group in zip(self.eigenvalues.split(EIGENVALUES), self.group.split(EIGENVALUES), strict=True):
            yield values, precisions if len(precisions) == 1 else precisions.gather(0, group), group


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

    @classmethod
    def of_grams(cls, matrices: Float[Tensor, "g m m"]) -> Determinant:
        """For the tangent-kernel Gram matrices ``K_g = Sᵀ J_g J_gᵀ S`` of each group: ``M = Σ_g K_g / α_g``."""
        return cls(lambda precisions: torch.einsum("g,gmn->mn", 1.0 / precisions, matrices))


def metric_root(changes: Float[Tensor, "d k"], prior: Float[Tensor, " d"]) -> Float[Tensor, "k k"]:
    """Triangular ``R`` with ``Rᵀ R = Wᵀ A W``, float64: that product would be singular where a diagonal A is not."""
    return torch.linalg.qr(prior.double().sqrt()[:, None] * changes.double()).R


Complexity: TypeAlias = Spectrum | Determinant
"""What the evidence charges for the directions the data determined."""


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


def semidefinite(matrix: Float[Tensor, "m m"]) -> Float[Tensor, "m m"]:
    """The matrix in float64, negative eigenvalues that are rounding set to 0: weak priors would blow them up."""
    basis = decompose(matrix)
    return (basis.vectors * basis.values) @ basis.vectors.mT


def complexity_of(
    curvature: Structured,
    group: Int[Tensor, " d"],
    relative: Float[Tensor, " d"] | None = None,
    *,
    large: int = LARGE,
) -> Complexity:
    """The cheapest exact form of ``log det Λ / det A`` for a structure and a grouping of the weights.

    Args:
        curvature: G, on the flat vector of weights.
        group: Group of each weight.
        relative: r, for weights whose prior precision is r times that of their group; ``None`` for 1.
        large: Rows of a dense curvature from which its rank is looked at.

    Raises:
        UnsupportedError: If a block's structure has no exact sum with several precisions.
    """
    group = group.to(curvature.device)
    if relative is not None:
        curvature = in_units(curvature, relative.to(curvature.device))
    if (factor := thin_factor(curvature, large)) is not None:
        return complexity_of_factor(factor, group)
    if isinstance(curvature, Diagonal) or bool((group == group[0]).all()):
        values = curvature.eigenvalues()
        kept = values != 0
        own = values if bool(kept.all()) else values[kept]
        return Spectrum(own, group[kept] if isinstance(curvature, Diagonal) else group[:1].clone().expand(len(own)))
    if isinstance(curvature, BlockDiagonal) and curvature.index is not None:
        parts = [complexity_of(b, group[i]) for b, i in zip(curvature.blocks, curvature.index, strict=True)]
        spectra = [part for part in parts if isinstance(part, Spectrum)]
        if len(spectra) == len(parts):
            return Spectrum(torch.cat([x.eigenvalues for x in spectra]), torch.cat([x.group for x in spectra]))
    if not isinstance(curvature, Dense):
        curvature.plus_diagonal(Diagonal((1.0 + group).to(curvature.diagonal())))
    dense = semidefinite(curvature.dense())

    def whitened(precisions: Float[Tensor, " g"]) -> Float[Tensor, "d d"]:
        root = precisions[group].rsqrt()
        return root[:, None] * dense * root

    return Determinant(whitened, dense)


def complexity_of_factor(factor: Float[Tensor, "d r"], group: Int[Tensor, " d"]) -> Complexity:
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
    if isinstance(curvature, LowRank):
        return curvature.factor.double() if curvature.base is None else None
    if not isinstance(curvature, Dense) or curvature.decomposed or curvature.dtype != torch.float64:
        return None
    matrix = curvature.dense()
    diagonal = matrix.diagonal()
    if len(matrix) < large or bool((diagonal < 0).any()):
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
    group, relative = group.to(changes.device), None if relative is None else relative.to(changes.device)

    def whitened(precisions: Float[Tensor, " g"]) -> Float[Tensor, "k k"]:
        prior = precisions[group] if relative is None else precisions[group] * relative
        lower = metric_root(changes, prior).mT
        half = torch.linalg.solve_triangular(lower, curvature, upper=False)
        matrix = torch.linalg.solve_triangular(lower, half.mT, upper=False)
        return (matrix + matrix.mT) / 2

    if not bool((group == group[0]).all()):
        return Determinant(whitened)
    eigenvalues = decompose(whitened(curvature.new_ones(1))).values
    return Spectrum(eigenvalues, torch.zeros(len(eigenvalues), dtype=torch.long, device=changes.device))


def in_units(curvature: Structured, relative: Float[Tensor, " d"]) -> Structured:
    """``R^-½ G R^-½`` for a diagonal R: the curvature in units in which a prior precision R is 1.

    Raises:
        UnsupportedError: If the sum of the structure and R has no exact form.
    """
    if isinstance(curvature, Diagonal):
        return Diagonal(curvature.values.double() / relative)
    root = relative.rsqrt()
    if isinstance(curvature, LowRank) and curvature.base is None:
        return LowRank(root[:, None] * curvature.factor.double())
    if not isinstance(curvature, Dense):
        curvature.plus_diagonal(Diagonal(relative.to(curvature.dtype)))
    return Dense(semidefinite(root[:, None] * curvature.dense().double() * root))


@final
@dataclass(frozen=True, eq=False)
class LogEvidence:
    """The log evidence as a differentiable function of the prior precisions and the noise.

    Args:
        complexity: The log-determinant term.
        square_norms: ``|θ_g|²`` of each group, every weight times its precision relative to the group's.
        sizes: Weights in each group.
        nll: Negative log likelihood at s = 1, nats.
        misfit: Weighted squared error at s = 1, for Gaussian noise; 0 otherwise.
        observations: Scalar observations; 0 where the likelihood has no noise.
        shift: What moves with the mode of the linear model; ``None`` keeps the trained weights.
    """

    complexity: Complexity
    square_norms: Float[Tensor, " g"]
    sizes: Float[Tensor, " g"]
    nll: float
    misfit: float
    observations: float
    shift: NewtonStep | None = None

    def log_marginal(self, precisions: Float[Tensor, " g"], scale: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Log evidence in nats, differentiable in both arguments."""
        return self.log_joint(precisions, scale) - 0.5 * self.complexity.log_det_ratio(precisions, scale)

    def log_joint(self, precisions: Float[Tensor, " g"], scale: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """``log p(y | θ) - ½ Σ_g α_g |θ_g|²``, nats: the evidence but for its charge for what the data determined."""
        misfit, norms = self.fit(precisions, scale)
        return self.log_likelihood(misfit, scale) - 0.5 * (precisions * norms).sum()

    def log_likelihood(self, misfit: Tensor, scale: Tensor) -> Tensor:
        """Log likelihood when the squared error is ``misfit`` and the noise precision is scaled by s."""
        at_one = -self.nll + 0.5 * self.misfit
        return at_one - 0.5 * scale * misfit + 0.5 * self.observations * scale.log()

    def fit(self, precisions: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Squared error and ``|θ_g|²``, at the trained weights or at the linear model's mode."""
        if self.shift is None:
            return scale.new_tensor(self.misfit), self.square_norms
        return self.shift.fit(self.misfit, precisions, scale)

    def effective_dimensions(self, precisions: Float[Tensor, " g"], scale: Float[Tensor, ""]) -> Float[Tensor, " g"]:
        """``γ_g = d_g - α_g tr(Λ⁻¹)_g``: directions of each group the data determined (MacKay 1992, equation 4.9)."""
        if isinstance(self.complexity, Spectrum):
            return self.complexity.determined(precisions.detach(), scale.detach())[0]
        log_precisions = precisions.detach().log().requires_grad_()
        with torch.enable_grad():
            ratio = self.complexity.log_det_ratio(log_precisions.exp(), scale.detach())
            (gradient,) = torch.autograd.grad(ratio, log_precisions)
        return -gradient


@final
@dataclass(frozen=True, eq=False)
class NewtonStep:
    """The mode of the linear model around the trained weights: one Newton step, exact for Gaussian noise.

    Args:
        curvature: G at s = 1.
        score: Gradient of the log likelihood in the weights at s = 1.
        weights: Trained weights.
        group: Group of each weight.
        relative: Precision of each weight relative to its group's; ``None`` for 1.
    """

    curvature: Structured
    score: Float[Tensor, " d"]
    weights: Float[Tensor, " d"]
    group: Int[Tensor, " d"]
    relative: Float[Tensor, " d"] | None = None

    def step(self, precisions: Float[Tensor, " g"], scale: Float[Tensor, ""]) -> Float[Tensor, " d"]:
        """``Λ⁻¹ (s ∇ log p(y | θ) - A θ)``."""
        prior = (precisions[self.group] * self._relative).to(self.weights)
        precision = self.curvature.scaled(float(scale)).plus_diagonal(Diagonal(prior))
        return precision.solve(scale.to(self.score) * self.score - prior * self.weights)

    def fit(self, misfit: float, precisions: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Squared error and ``|θ_g|²`` at the mode. The step is held fixed: at a mode its derivative has no effect."""
        with torch.no_grad():
            step = self.step(precisions, scale)
            moved = self.weights + step
            error = misfit - 2.0 * (self.score * step).sum() + (step * (self.curvature @ step)).sum()
            squares = self._relative * moved.to(precisions).square()
            norms = torch.zeros_like(precisions).index_add(0, self.group, squares)
        return error.to(precisions), norms

    @property
    def _relative(self) -> Float[Tensor, " d"] | float:
        return 1.0 if self.relative is None else self.relative
