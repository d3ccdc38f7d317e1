"""Statistics of known distribution, their p-values, and what is left of these when there are several.

SciPy's distributions take half a second to import, so each function imports them when it is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor


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
    from scipy import stats

    found = stats.kstest(distances.numpy(force=True), stats.chi2(dimension).cdf)
    return Check("radius", float(found.statistic), float(found.pvalue))


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
    from scipy import stats

    found = stats.kstest(z.flatten().numpy(force=True), stats.norm.cdf)
    return Check("shape", float(found.statistic), float(found.pvalue))


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
    adjusted, reached = [0.0] * len(p_values), 0.0
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
