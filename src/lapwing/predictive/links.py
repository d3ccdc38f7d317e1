"""From Gaussian outputs to probabilities: probit, pairwise probit, Laplace bridge, Monte Carlo."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.device import CACHED
from lapwing.ground.errors import ConfigError, ShapeError, check_count
from lapwing.ground.precision import wide, wide_like
from lapwing.ground.tracing import traced
from lapwing.moments.outputs import Moments
from lapwing.moments.wide import WideMoments
from lapwing.predictive.quadrature import MAX_BYTES, check_time, over_positions

Link: TypeAlias = Literal["probit", "pairwise", "bridge", "qmc", "mc"]
"""How the logits' uncertainty is averaged out: the probit approximation logit by logit or pair by pair, the Laplace
bridge, fixed quasi-random draws (for a single logit and two classes the integral itself), or Monte Carlo."""

LINEAR = 40.0
"""From where log(1 + e^x) is x to the last digit of float64."""

SAMPLES = 1024
"""Draws of a Monte Carlo average."""

PAIR = 1.2e-8
"""Seconds that a pair of classes takes on one core."""

PAIR_BYTES = 48
"""Bytes that a pair of classes takes."""


def check_link(link: str, temperature: float = 1.0) -> None:
    """Refuses what is no link or no temperature.

    Raises:
        ConfigError: If the link is not one of the five, or the temperature not positive.
    """
    if link not in get_args(Link):
        raise ConfigError(f"a link that is one of {', '.join(get_args(Link))}", f"{link!r}", "'qmc'")
    if not 0 < temperature < math.inf:
        raise ConfigError("a temperature > 0", f"{temperature}", "1.0, which changes nothing")


def softmax(logits: Tensor) -> Tensor:
    """Class probabilities of known logits."""
    return torch.softmax(logits, -1)


def probit(moments: Moments | WideMoments) -> Float[Tensor, "*batch c"]:
    """Class probabilities softmax(μ / √(1 + π/8 diag Σ)).

    The probit approximation of MacKay (1992), "The evidence framework applied to classification networks",
    logit by logit as in Daxberger et al. (2021), "Laplace redux". Covariances between logits are ignored, and
    adding one constant to all logits changes the answer where their variances differ.

    Args:
        moments: Gaussian logits.

    Returns:
        Probabilities ``[n, *event, c]``.

    Example:
        >>> probit(Moments.certain(torch.tensor([[0.0, math.log(3.0)]])))
        tensor([[0.2500, 0.7500]])
    """
    return torch.softmax(_damped(moments), -1)


def probit_binary(moments: Moments | WideMoments) -> Float[Tensor, "*batch c"]:
    """Probabilities σ(μ / √(1 + π/8 diag Σ)) of independent yes-or-no labels; see ``probit``.

    Args:
        moments: Gaussian logits.
    """
    return torch.sigmoid(_damped(moments))


def pairwise(moments: Moments | WideMoments, *, max_bytes: int = MAX_BYTES) -> Float[Tensor, "*batch c"]:
    """Class probabilities p_c ∝ 1 / Σ_j exp(-(μ_c - μ_j) / √(1 + π/8 Var(f_c - f_j))), normalised.

    The probit approximation pair by pair (Lu, Ie and Sha 2020, "Mean-field approximation to Gaussian-softmax integral
    with application to uncertainty estimation"). It sees covariances: what shifts all logits alike plays no part. Of
    two classes it is ``probit`` of their difference.

    Args:
        moments: Gaussian logits.
        max_bytes: Memory for the pairs; as many positions are taken at a time, or of many classes rows of pairs.

    Returns:
        Probabilities ``[n, *event, c]``, computed in float64.

    Raises:
        NumericalError: If a variance is negative or not finite.
        TooLargeError: If there are so many classes that a position would take more than ``LONGEST``.

    Cost: c² pairs a position, ``PAIR`` seconds each on one core; of many classes some rows of pairs at a time.

    Example:
        >>> shared = 100 * torch.ones(1, 2, 2)
        >>> pairwise(Moments(torch.tensor([[0.0, math.log(3.0)]]), shared))
        tensor([[0.2500, 0.7500]])
    """
    _ = moments.variance  # refuses what is no variance
    c = moments.mean.shape[-1]
    check_time("pairwise", c, PAIR * c**2)

    def of_pairs(some: Moments | WideMoments) -> Tensor:
        mean = wide(some.mean)
        half = 0.5 + math.pi / 8 * wide(some.variance)  # of 1 + π/8 (v_i + v_j - 2 Σ_ij), which is at least 1
        together = c if traced() else max(1, min(CACHED, max_bytes) // (PAIR_BYTES * mean.numel()))
        sums: list[Tensor] = []
        for start in range(0, c, together):
            own = slice(start, start + together)
            apart = half[:, own, None] + half[:, None, :]
            apart = torch.sub(apart, some.covariance_rows(own).to(apart), alpha=math.pi / 4).clamp_min(1.0)
            gaps = (mean[:, None, :] - mean[:, own, None]) * torch.rsqrt(apart)
            sums.append(torch.logsumexp(gaps, -1))
        return torch.softmax(-torch.cat(sums, -1), -1)

    return over_positions(of_pairs, moments, PAIR_BYTES * c**2, max_bytes)


def laplace_bridge(moments: Moments | WideMoments, *, normalise: bool = False) -> Float[Tensor, "*batch c"]:
    """Class probabilities α / Σ_l α_l, the mean of the Dirichlet(α) of ``concentration``.

    Computed from log α, so finite for every finite logit. Where a position's logits have no variance, or
    only one that softmax does not see, the exact answer softmax(μ) is returned. For small variances and more
    than two classes the bridge does not tend to softmax(μ); ``probit`` does.

    Args:
        moments: Gaussian logits.
        normalise: Whether to rescale the variances first; see ``concentration``.

    Returns:
        Probabilities ``[n, *event, c]``.

    Raises:
        ShapeError: If there is one class only.
    """
    log_alpha, spread = _log_concentration(moments, normalise)
    certain = (spread.amax(-1, keepdim=True) == 0).expand_as(spread)
    return torch.where(certain, torch.softmax(moments.mean, -1), torch.softmax(log_alpha, -1))


def concentration(moments: Moments | WideMoments, *, normalise: bool = False) -> Float[Tensor, "*batch c"]:
    """Concentration α of the Dirichlet that the Laplace bridge lays over Gaussian logits.

    The logits are first conditioned on a zero sum, μ' = μ - Σ1 (1ᵀμ) / (1ᵀΣ1) and Σ' = Σ - Σ11ᵀΣ / (1ᵀΣ1);
    then α_k = (1 - 2/c + e^{μ'_k} / c² Σ_l e^{-μ'_l}) / Σ'_kk. Where 1ᵀΣ1 = 0 the mean of μ is subtracted
    instead, a shift that softmax does not see. With ``normalise``, v = √(2/c) · mean_k Σ'_kk, and μ' is
    divided by √v and Σ'_kk by v first (``bridge_norm`` of laplace-torch 0.3): better for large variances.

    Args:
        moments: Gaussian logits.
        normalise: Whether to rescale mean and variances by v.

    Returns:
        α ``[n, *event, c]``, positive; infinite where the variance is 0 or α exceeds the dtype (logits that
        differ by more than about 88 in float32, 709 in float64). ``laplace_bridge`` stays finite there.

    Raises:
        ShapeError: If there is one class only.

    Source: Hobbhahn, Kristiadi and Hennig (2022), "Fast predictive uncertainty for classification with
    Bayesian deep networks", https://proceedings.mlr.press/v180/hobbhahn22a.html.

    Example:
        >>> concentration(Moments(torch.zeros(1, 2), torch.eye(2).expand(1, 2, 2)))
        tensor([[1., 1.]])
    """
    log_alpha, spread = _log_concentration(moments, normalise)
    return torch.where(spread > 0, log_alpha.exp(), math.inf)


def monte_carlo(
    moments: Moments | WideMoments,
    samples: int = SAMPLES,
    *,
    link: Callable[[Tensor], Tensor] = softmax,
    max_bytes: int = MAX_BYTES,
    generator: torch.Generator | None = None,
) -> tuple[Float[Tensor, "*batch c"], Float[Tensor, "*batch c"]]:
    """Average of link(f) over draws of the outputs f, with its standard error.

    Args:
        moments: Gaussian outputs.
        samples: Number of draws of every position.
        link: Function of outputs ``[k, n, *event, c]``, elementwise or over the last axis.
        max_bytes: Memory for draws; they are taken in as many rounds as that needs.
        generator: Source of randomness; ``None`` draws from PyTorch's global one.

    Returns:
        Mean and standard error, both ``[n, *event, c]``.

    Raises:
        ConfigError: If there are not at least two samples.

    Cost: ``samples`` products with the root; at most ``max_bytes`` (or one draw) beside the result.

    Example:
        >>> probs, stderr = monte_carlo(Moments.certain(torch.zeros(1, 4)), 10)
        >>> probs, stderr
        (tensor([[0.2500, 0.2500, 0.2500, 0.2500]]), tensor([[0., 0., 0., 0.]]))
    """
    check_count("samples", samples, 2, usual=SAMPLES)
    moments = moments.factored()
    total = torch.zeros(moments.mean.shape, **wide_like(moments.mean))
    squares = torch.zeros_like(total)
    draw_bytes = 6 * moments.drawn_numbers * moments.mean[..., 0].numel() * moments.mean.element_size()
    chunk = min(samples, max(1, max_bytes // max(1, draw_bytes)))
    for start in range(0, samples, chunk):
        values = link(moments.sample(min(chunk, samples - start), generator=generator))
        total += wide(values).sum(0)
        squares += wide(values.square()).sum(0)
    mean = total / samples
    variance = (squares / samples - mean.square()).clamp(min=0.0) / (samples - 1)
    return mean.to(moments.mean), variance.sqrt().to(moments.mean)


def _damped(moments: Moments | WideMoments) -> Tensor:
    return moments.mean * torch.rsqrt(1 + math.pi / 8 * moments.variance)


def _log_concentration(moments: Moments | WideMoments, normalise: bool) -> tuple[Tensor, Tensor]:
    """Log α and the zero-sum variances Σ'_kk, floored at rounding level unless all of a position are 0."""
    c = moments.mean.shape[-1]
    if c < 2:
        raise ShapeError(
            "at least two classes for the Laplace bridge",
            f"logits of shape {list(moments.mean.shape)}",
            "Bernoulli() for a single logit",
        )
    mean, spread = _zero_sum(moments)
    floor = torch.finfo(spread.dtype).eps * spread.amax(-1, keepdim=True)
    spread = torch.maximum(spread, floor)
    if normalise:
        scale = spread.mean(-1, keepdim=True) * (2 / c) ** 0.5
        scale = torch.where(scale > 0, scale, 1.0)
        mean = mean / scale.sqrt()
        spread = spread / scale
    mass = mean + torch.logsumexp(-mean, -1, keepdim=True) - 2 * math.log(c)
    offset = torch.full_like(mass, math.log(1 - 2 / c) if c > 2 else -math.inf)
    log_spread = torch.log(spread.clamp(min=torch.finfo(spread.dtype).tiny))
    return torch.logaddexp(offset, mass) - log_spread, spread


def _zero_sum(moments: Moments | WideMoments) -> tuple[Tensor, Tensor]:
    """Mean and variances of the logits given that they sum to zero; variances at rounding level become 0."""
    rows = moments.row_sums
    total = rows.sum(-1, keepdim=True)
    variance = moments.variance
    rounding = rows.shape[-1] * torch.finfo(rows.dtype).eps * variance.amax(-1, keepdim=True)
    usable = total > rounding
    gain = rows / torch.where(usable, total, 1.0)
    mean = moments.mean - torch.where(usable, gain, 1 / rows.shape[-1]) * moments.mean.sum(-1, keepdim=True)
    spread = torch.where(usable, variance - gain * rows, variance)
    return mean, torch.where(spread > rounding, spread, 0.0)
