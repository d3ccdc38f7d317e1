"""Gaussian numbers with Student-t noise: mixtures of Gaussians over the precision of the noise, by quadrature."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.device import CACHED
from lapwing.ground.precision import wide_like

NEGLIGIBLE = 40.0
"""Nats below its largest value at which an integrand ends: what is beyond adds less than 1e-15."""

STEP = 0.5
"""Step of the rule, in units of ``1 / √(4 + ν / 2)``: about the width of what is integrated."""

BUDGET = 2**27
"""Bytes the integrands of some numbers at all nodes may take (128 MiB)."""

FAR = 1e40
"""Square of a distance, in units of all variance, from which on the density is that of the noise alone, to rounding."""

STIRLING = 200.0
"""Degrees of freedom from which on gamma functions are Stirling's series: their logarithms would cancel."""


def log_density(
    away: Float[Tensor, " m"], variance: Float[Tensor, " m"], df: float, scale: float, *, max_bytes: int = BUDGET
) -> Float[Tensor, " m"]:
    """Log density of the sum of a Gaussian number and Student-t noise, nats, to about twelve digits in every tail.

        p(y) = ∫ N(y; m, v + σ² / g) Gamma(g; ν/2, ν/2) dg

    over u = log g, where the trapezoid rule converges exponentially (Trefethen and Weideman 2014, "The exponentially
    convergent trapezoidal rule"). Each number has nodes of its own, which reach as far as it lies from the mean; of
    numbers 1e20 standard deviations away the noise alone is looked at.

    Args:
        away: ``y - m``, float64.
        variance: v, float64; 0 for a number that is known.
        df: ν.
        scale: σ.
        max_bytes: What the integrands of some numbers at all nodes may take.

    Cost:
        Some hundred Gaussian densities a number; more where ν is large and y far out, in proportion to ``√ν log |y|``.
    """
    far = away.square() > FAR * (variance + scale**2)
    near = _log_mixture(torch.where(far, 0.0, away), variance, df, scale, max_bytes)
    return torch.where(far, student_t_log_prob(away, df, scale), near)


def _log_mixture(
    away: Float[Tensor, " m"], variance: Float[Tensor, " m"], df: float, scale: float, max_bytes: int
) -> Float[Tensor, " m"]:
    with torch.no_grad():
        lowest = _lowest(away, variance, df, scale)
        highest = _highest(df)
        counts = ((highest - lowest) / _step(df)).ceil()
    found = torch.empty_like(away)
    for some in _pieces(counts, max_bytes):
        nodes = int(counts[some].max())
        places = torch.arange(nodes + 1, **wide_like(away))[:, None]
        step = (highest - lowest[some]) / nodes
        u = lowest[some] + step * places
        total = variance[some] + (2 * math.log(scale) - u).exp()
        gaussian = -0.5 * (away[some].square() / total + (2 * math.pi * total).log())
        found = found.index_put((some,), torch.logsumexp(_log_gamma(u, df) + gaussian, 0) + step.log())
    return found


def share_below(
    away: Float[Tensor, " m"], variance: Float[Tensor, " m"], df: float, scale: float, *, max_bytes: int = BUDGET
) -> Float[Tensor, " m"]:
    """``P(y' ≤ y)`` of that sum, to about twelve digits after the point; arguments as in ``log_density``."""
    lowest = float(_lowest_of_gamma(away.new_full((1,), NEGLIGIBLE), df))
    highest = _highest(df)
    nodes = math.ceil((highest - lowest) / _step(df))
    u = lowest + (highest - lowest) / nodes * torch.arange(nodes + 1, **wide_like(away))
    weights = torch.softmax(_log_gamma(u, df), 0)
    noise = scale**2 * (-u).exp()
    found = torch.empty_like(away)
    for some in _pieces(torch.full_like(away, float(nodes)), max_bytes):
        deviations = (variance[some] + noise[:, None]).sqrt()
        found = found.index_put((some,), weights @ torch.special.ndtr(away[some] / deviations))
    return found


def student_t_log_prob(residuals: Float[Tensor, "*n"], df: float, scale: float) -> Float[Tensor, "*n"]:
    """``log Γ((ν + 1)/2) - log Γ(ν/2) - ½ log(ν π) - log σ - (ν + 1)/2 log(1 + r² / (ν σ²))`` of residuals r, nats.

    Args:
        residuals: r.
        df: ν.
        scale: σ.
    """
    surprise = log_one_plus_square(residuals, scale * math.sqrt(df))
    return log_normaliser(df) - math.log(scale) - 0.5 * (df + 1) * surprise


def log_normaliser(df: float) -> float:
    """``log Γ((ν + 1)/2) - log Γ(ν/2) - ½ log(ν π)``: the log density of a t number of scale 1 at 0."""
    if df < STIRLING:
        return math.lgamma(0.5 * (df + 1)) - math.lgamma(0.5 * df) - 0.5 * math.log(df * math.pi)
    x = 0.5 * df
    return -0.5 * math.log(2 * math.pi) - 1 / (8 * x) + 1 / (192 * x**3) - 1 / (640 * x**5)


def log_one_plus_square(values: Float[Tensor, "*n"], unit: float) -> Float[Tensor, "*n"]:
    """``log(1 + (x / unit)²)``, whose square neither overflows nor rounds small numbers away."""
    far = values.abs() > unit
    large = torch.where(far, values, unit)
    ratio = torch.where(far, unit / large, values / unit)
    return torch.log1p(ratio.square()) + torch.where(far, 2 * (large.abs().log() - math.log(unit)), 0.0)


def _log_gamma(u: Float[Tensor, "*n"], df: float) -> Float[Tensor, "*n"]:
    """Log density of the logarithm of a gamma number of mean 1 and shape ``a = ν/2``: ``c + a (u - e^u + 1)``."""
    a = 0.5 * df
    if df < STIRLING:
        constant = a * math.log(a) - a - math.lgamma(a)
    else:
        constant = 0.5 * math.log(a / (2 * math.pi)) - 1 / (12 * a) + 1 / (360 * a**3)
    return constant - a * (torch.expm1(u) - u)


def _step(df: float) -> float:
    return STEP / math.sqrt(4 + 0.5 * df)


def _lowest(away: Float[Tensor, " m"], variance: Float[Tensor, " m"], df: float, scale: float) -> Float[Tensor, " m"]:
    """Below which u the integrand of a density is negligible.

    The gamma density falls as ``a (e^u - u - 1)``, while the Gaussian gains at most what it lacks at u = 0. Once
    ``σ² e^-u`` exceeds both the variance and the square, the integrand falls as ``e^((a + ½) u)``, too.
    """
    squares = away.square()
    ratio = (squares / (variance + scale**2)).clamp(1.0, torch.finfo(squares.dtype).max)
    by_gamma = _lowest_of_gamma(NEGLIGIBLE + 0.5 * (ratio - 1 - ratio.log()), df)
    over = (squares + variance).clamp_min(4 * scale**2).log() - 2 * math.log(scale)
    by_both = -over - 6 - (NEGLIGIBLE + 5) / (0.25 * df + 0.25)
    return torch.maximum(by_gamma, by_both)


def _lowest_of_gamma(lacking: Float[Tensor, " m"], df: float) -> Float[Tensor, " m"]:
    """Below which u the gamma density has fallen by so much: for u = -x at least as ``x² / (2 + x)`` grows."""
    c = 2 * lacking / df
    return -0.5 * c - (0.25 * c.square() + 2 * c).sqrt()


def _highest(df: float) -> float:
    """Above which u an integrand is negligible: the Gaussian gains at most u/2, the gamma density falls doubly fast."""
    a = 0.5 * df
    by_square = (0.5 + math.sqrt(0.25 + 2 * NEGLIGIBLE * a)) / a
    by_exponential = max(3.0, math.log(5 * NEGLIGIBLE / a))
    return min(by_square, by_exponential)


def _pieces(nodes: Float[Tensor, " m"], max_bytes: int) -> Iterator[Int[Tensor, " p"]]:
    """Numbers, those of most nodes first, so many at a time that as many nodes for each of them fit the bytes."""
    room = min(max_bytes, CACHED) if nodes.device.type == "cpu" else max_bytes
    order = nodes.argsort(descending=True)
    start = 0
    while start < len(order):
        most = float(nodes[order[start]]) + 1
        size = max(1, int(room / (8 * most)))
        yield order[start : start + size]
        start = start + size
