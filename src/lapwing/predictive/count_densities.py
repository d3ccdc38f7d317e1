"""Densities of counts whose rate is uncertain: integrals over a Gaussian log rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.precision import wide_like

NEGLIGIBLE = 40.0
"""Below its largest value, nats, where an integrand is left out."""

SEARCHES = 64
"""Steps by which the largest value of an integrand and the ends of what counts of it are found."""

NODES = 128
"""Fewest points of the trapezoid rule: a Gaussian has seven a standard deviation, at least."""

STEP = 0.25
"""Longest step in a log rate: rates of e^f, and what is made of them, turn within one."""

HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)

BUDGET = 2**27
"""Bytes the integrands of some counts at all points may take (128 MiB)."""

LogProbGiven: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""``log P(y | f)`` of counts ``[m]`` at log rates ``[nodes, m]``, nats, float64: at most 0, with one peak in f."""


def log_density(
    counts: Float[Tensor, " m"],
    mean: Float[Tensor, " m"],
    variance: Float[Tensor, " m"],
    log_prob_given: LogProbGiven,
    *,
    max_bytes: int = BUDGET,
) -> Float[Tensor, " m"]:
    """``log E P(y | f)`` for ``f ~ N(m, v)``, to about ten digits, nats; each count by itself, whatever the others.

        E P(y | f) = ∫ φ(z) P(y | m + √v z) dz

    by the trapezoid rule, which converges exponentially (Trefethen and Weideman 2014, "The exponentially convergent
    trapezoidal rule"), where the integrand is not ``NEGLIGIBLE``.

    Args:
        counts: y, float64.
        mean: m, float64.
        variance: v, float64; 0 for a log rate that is known.
        log_prob_given: ``log P(y | f)``.
        max_bytes: What the integrands of some counts at all points may take.

    Cost:
        Some four hundred ``log P(y | f)`` a count; more where the standard deviation is above 2, in proportion.
    """
    deviation = variance.sqrt()

    def integrand(z: Float[Tensor, "nodes m"], some: Int[Tensor, " m"] | slice = slice(None)) -> Tensor:
        """Its logarithm, less that of √(2 π)."""
        return log_prob_given(counts[some], mean[some] + deviation[some] * z) - 0.5 * z.square()

    with torch.no_grad():
        low, high = _ends(integrand, counts, mean, deviation)
        needed = ((high - low) * deviation / STEP).clamp_min(NODES)
        powers = needed.log2().ceil()  # of two, so that the points of a count do not depend on other counts
    found = torch.empty_like(mean)
    for power in powers.unique().tolist():
        nodes = int(2**power)
        places = torch.arange(nodes + 1, **wide_like(mean))[:, None] / nodes
        for some in (powers == power).nonzero()[:, 0].split(max(1, max_bytes // (8 * nodes))):
            width = high[some] - low[some]
            values = integrand(low[some] + width * places, some)
            total = torch.logsumexp(values, 0) + (width / nodes).log() - HALF_LOG_TWO_PI
            found = found.index_put((some,), total)
    return found


def _ends(
    integrand: Callable[[Tensor], Tensor],
    counts: Float[Tensor, " m"],
    mean: Float[Tensor, " m"],
    deviation: Float[Tensor, " m"],
) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
    """Between which z an integrand of one peak counts.

    A probability is at most 1, so that it is below ``-z² / 2``: no further out than that is it as large as at the mean
    of the log rate, or where the rate is the count.
    """
    tiny = torch.finfo(deviation.dtype).tiny
    likeliest = (counts.clamp_min(0.5).log() - mean) / deviation.clamp_min(tiny)
    known = integrand(torch.stack([torch.zeros_like(likeliest), likeliest]))
    reached = known.nan_to_num(nan=-torch.inf).amax(0).clamp_min(torch.finfo(known.dtype).min / 4)
    furthest = (2 * (NEGLIGIBLE - reached)).sqrt()
    left = -furthest
    right = furthest
    for _ in range(SEARCHES):
        third = (right - left) / 3
        lower, upper = integrand(torch.stack([left + third, right - third]))
        rises = lower < upper
        left = torch.where(rises, left + third, left)
        right = torch.where(rises, right, right - third)
    peak = (left + right) / 2
    least = integrand(peak[None])[0] - NEGLIGIBLE
    inside = torch.stack([peak, peak])
    outside = torch.stack([-furthest, furthest])
    for _ in range(SEARCHES):
        middle = (inside + outside) / 2
        matters = integrand(middle) >= least
        inside = torch.where(matters, middle, inside)
        outside = torch.where(matters, outside, middle)
    return outside[0], outside[1]
