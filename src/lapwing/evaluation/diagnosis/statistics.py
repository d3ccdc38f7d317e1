"""What is asked of draws: statistics of known distribution, and draws seen along single directions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.errors import NumericalError
from lapwing.ground.precision import wide, wide_like
from lapwing.linalg import Operator
from lapwing.linalg.eigenpairs import top_eigenpairs
from lapwing.linalg.operators.base import FunctionOperator


@final
@dataclass(frozen=True)
class Check:
    """One statistic and how probable one at least as extreme is.

    Args:
        name: What was looked at, such as ``"radius"`` or ``"stiff spread"``.
        statistic: Its value.
        p_value: Probability of a value at least as extreme if the draws are what they should be.
    """

    name: str
    statistic: float
    p_value: float


def radius(distances: Float[Tensor, " s"], dimension: int) -> Check:
    """Kolmogorov-Smirnov: ``d² ~ χ²(d)`` (Brack 2023, equation 4.29); the statistic is ``sup |F̂ - F|``."""
    return _kolmogorov_smirnov("radius", distances, "chi2", (dimension,))


def _kolmogorov_smirnov(name: str, values: Float[Tensor, " m"], family: str, of: tuple[int, ...]) -> Check:
    from scipy import stats

    found = stats.kstest(values.numpy(force=True), family, of)
    return Check(name, float(found.statistic), float(found.pvalue))


def mean(gram: Float[Tensor, "s s"], dimension: int) -> Check:
    """The draws' mean: ``S (θ̄ - θ*)ᵀ Λ (θ̄ - θ*) ~ χ²(d)``, two-sided."""
    statistic = float(gram.sum()) / len(gram)
    return Check("mean", statistic, chi2_p(statistic, float(dimension)))


def pairs(gram: Float[Tensor, "s s"], dimension: int) -> Check:
    """Independence and rank: ``Σ_{s<t} (δ_sᵀ Λ δ_t)² / d`` over its mean, the number M of pairs.

    Draws that repeat, or that leave directions out, raise it. The sum has variance
    ``M (2 + 6/d) + 4 M (S - 2) / d`` and is, nearly, a multiple of a χ² variable.
    """
    size = len(gram)
    count = size * (size - 1) / 2
    total = float(gram.tril(-1).square().sum()) / dimension
    variance = count * (2 + 6 / dimension) + 4 * count * (size - 2) / dimension
    p_value = chi2_p(2 * count * total / variance, 2 * count**2 / variance)
    return Check("pairs", total / count, p_value)


def spread(z: Float[Tensor, "k s"]) -> Check:
    """Variance of all projections together: ``Σ z² ~ χ²(k S)``, two-sided; the statistic is their mean square."""
    square = float(z.square().sum())
    return Check("spread", square / z.numel(), chi2_p(square, float(z.numel())))


def shape(z: Float[Tensor, "k s"]) -> Check:
    """Kolmogorov-Smirnov of all projections together against ``N(0, 1)``; the statistic is ``sup |F̂ - Φ|``."""
    return _kolmogorov_smirnov("shape", z.flatten(), "norm", ())


def worst(z: Float[Tensor, "k s"]) -> Check:
    """The direction that is furthest off, in mean or in variance, and by how many standard errors.

    The smallest of 2 k p-values, times 2 k: one direction out of k is enough.
    """
    from scipy import stats

    k, size = z.shape
    off_mean = 2 * stats.norm.sf(z.mean(1).abs().numpy(force=True) * size**0.5)
    off_variance = [chi2_p(float(row.square().sum()), float(size)) for row in z]
    smallest = min([*off_mean.tolist(), *off_variance])
    return Check("worst", float(stats.norm.isf(smallest / 2)), min(1.0, 2 * k * smallest))


def chi2_p(value: float, freedom: float) -> float:
    """Two-sided p-value of a χ² variable: twice the smaller tail."""
    from scipy import stats

    return float(min(1.0, 2 * min(stats.chi2.cdf(value, freedom), stats.chi2.sf(value, freedom))))


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """P-values as if there had been one test only (Holm 1979): valid however the tests depend on each other.

    Returns:
        In the order given; below a level only if the chance of any false alarm is.

    Example:
        >>> holm([0.01, 0.5, 0.02])
        (0.03, 0.5, 0.04)
    """
    adjusted = [0.0] * len(p_values)
    reached = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        reached = max(reached, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = reached
    return tuple(adjusted)


def detectable(count: int, level: float) -> float:
    """Relative error of a variance that ``count`` squares show nine times in ten.

    ``(z + z') r / (1 - z' r)`` for the normal quantiles z of ``1 - level/2`` and z' of 0.9, and ``r = √(2/count)``;
    infinite where there are too few.

    Example:
        >>> round(detectable(3200, 0.01), 3)
        0.1
    """
    normal = torch.distributions.Normal(0.0, 1.0)
    rejects, power = normal.icdf(torch.tensor([1 - level / 2, 0.9], dtype=torch.float64)).tolist()
    step = (2 / count) ** 0.5
    return (rejects + power) * step / (1 - power * step) if power * step < 1 else float("inf")


ROWS = 2**16
STEPS = 12
"""Block products spent on either end of the spectrum."""


@final
@dataclass(frozen=True, eq=False)
class Family:
    """Draws along k directions u: ``z = uᵀΛδ / √(uᵀΛu)``, which is N(0, 1) for each draw and each direction.

    The directions are made Λ-orthogonal in their order, so that the k rows are independent; those that depend on
    earlier ones to rounding are left out.

    Args:
        name: ``"random"``, ``"stiff"``, ``"sloppy"``, or the user's.
        z: Projections ``[k, s]``, float64.
        curvature: ``uᵀΛu / uᵀu`` of each direction, float64.
        residual: ``|Λu - curvature u| / (curvature |u|)`` of each, float64: 0 for an eigenvector; from about 1 on the
            direction mixes stiffer and sloppier ones.
    """

    name: str
    z: Float[Tensor, "k s"]
    curvature: Float[Tensor, " k"]
    residual: Float[Tensor, " k"]

    @property
    def variance(self) -> float:
        """Mean of z²: 1 where the draws are right."""
        return float(self.z.square().mean())

    @property
    def checks(self) -> tuple[Check, ...]:
        """Spread and shape of all directions together, and the worst of them."""
        found = (spread(self.z), shape(self.z), worst(self.z))
        return tuple(replace(check, name=f"{self.name} {check.name}") for check in found)

    def __str__(self) -> str:
        """How many, how stiff, how well resolved, how the draws vary along them."""
        low = float(self.curvature.min())
        high = float(self.curvature.max())
        resolved = float(self.residual.median())
        return (
            f"{len(self.z)} {self.name} directions: curvature {low:.3g} to {high:.3g}, median residual {resolved:.2g}, "
            f"variance {self.variance:.3g} of 1"
        )


def project(
    name: str,
    directions: Float[Tensor, "d k"],
    precision: Operator,
    image: Float[Tensor, "d s"],
) -> Family:
    """The family of some directions.

    Args:
        name: Of the family.
        directions: One a column, in the operator's dtype.
        precision: Λ.
        image: Λδ of each draw.

    Raises:
        NumericalError: If ``uᵀΛu`` of some direction is not positive.

    Cost:
        k products with Λ.
    """
    product = precision @ directions
    gram = inner(directions, product)
    cross = inner(directions, image)
    lengths = gram.diagonal()
    if not bool((lengths > 0).all()):
        raise NumericalError(
            "uᵀΛu > 0 for every direction u", f"{float(lengths.min()):.3g}", "a positive prior precision"
        )
    squares = inner(directions, directions).diagonal()
    curvature = lengths / squares
    defect = torch.stack(
        [(wide(p) - c * wide(u)).norm() for u, p, c in zip(directions.mT, product.mT, curvature, strict=True)]
    )
    unit = lengths.sqrt()
    kept, z = _independent(
        gram / torch.outer(unit, unit), cross / unit[:, None], 1e3 * torch.finfo(precision.dtype).eps
    )
    return Family(name, z, curvature[kept], (defect / (curvature * squares.sqrt()))[kept])


def directions_of(
    precision: Operator, count: int, *, generator: torch.Generator | None = None
) -> dict[str, Float[Tensor, "d k"]]:
    """Random, stiff and sloppy directions of a precision, ``count`` of each.

    Random directions weigh what they see by its curvature. The stiff ones are the top Ritz vectors of Λ. The sloppy
    ones are those of ``β I - Λ`` with β above the spectrum: where Λ is ill-conditioned they are the sloppiest that few
    products can find and not the bottom of the spectrum, as their curvature and residual tell.

    Args:
        precision: Λ.
        count: Directions of each kind, at most d.
        generator: Source of randomness.

    Cost:
        At most ``2 STEPS`` products with blocks of ``count`` columns.
    """
    size = precision.shape[0]
    like = torch.empty(0, dtype=precision.dtype, device=precision.device)
    random = probes.gaussian([size, count], like=like, generator=generator)
    stiff = top_eigenpairs(precision, count, rtol=1e-3, block=count, max_steps=STEPS, generator=generator)
    ceiling = 1.01 * float(stiff.values.max()) + float(stiff.residual.max())

    def flipped(block: Tensor) -> Tensor:
        return ceiling * block - precision @ block

    mirror = FunctionOperator(flipped, flipped, precision.shape, like)
    sloppy = top_eigenpairs(mirror, count, rtol=1e-9, block=count, max_steps=STEPS, generator=generator)
    return {"random": random, "stiff": stiff.vectors.to(like), "sloppy": sloppy.vectors.to(like)}


def inner(a: Float[Tensor, "d k"], b: Float[Tensor, "d s"]) -> Float[Tensor, "k s"]:
    """``aᵀ b`` summed in float64, a slab of rows at a time."""
    total = torch.zeros(a.shape[1], b.shape[1], **wide_like(a))
    for left, right in zip(a.split(ROWS), b.split(ROWS), strict=True):
        total += wide(left).mT @ wide(right)
    return total


def _independent(
    correlation: Float[Tensor, "k k"], z: Float[Tensor, "k s"], tolerance: float
) -> tuple[list[int], Float[Tensor, "k2 s"]]:
    """What each row of z adds to the rows before it, scaled to variance 1; rows that add nothing are left out."""
    correlation = correlation.clone()
    z = z.clone()
    kept: list[int] = []
    for i in range(len(z)):
        pivot = correlation[i, i].clone()
        if float(pivot) <= tolerance:
            continue
        kept.append(i)
        factors = correlation[i + 1 :, i : i + 1] / pivot
        z[i + 1 :] -= factors * z[i]
        correlation[i + 1 :] -= factors * correlation[i]
        z[i] /= pivot.sqrt()
    return kept, z[kept]
