"""Distribution functions and quantiles of counts whose rate is uncertain: of a mixture over the rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.precision import wide
from lapwing.moments.wide import Outputs

LARGEST_LOG = 700.0
"""Log rates beyond are cut, short of where exp overflows."""

BUDGET = 2**27
"""Bytes the probabilities of some counts at all points may take (128 MiB)."""

ShareBelow: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""P(y ≤ k) given a rate: of counts k ``[m]`` and rates ``[nodes, m]``, in float64."""


def count_cdf(
    log_rates: Outputs, counts: Float[Tensor, "*batch c"], share_below: ShareBelow, *, max_bytes: int = BUDGET
) -> Float[Tensor, "*batch c"]:
    """``P(y ≤ k) = E P(y ≤ k | e^f)`` of each count k by itself, float64.

    Args:
        log_rates: What is known of f: Gaussian, which the trapezoid rule integrates over, or draws.
        counts: k.
        share_below: P(y ≤ k | e^f).
        max_bytes: What the probabilities of some counts at all points may take.

    Cost:
        ``share_below`` of ``NODES`` rates, or one a draw.
    """
    flat = wide(counts).flatten()
    weights = log_rates.node_weights()
    found = flat.new_zeros(len(flat))
    for some in _pieces(flat, len(weights), max_bytes):
        found[some] = weights @ share_below(flat[some], _rates(log_rates, some))
    return found.view(counts.shape)


def count_quantile(
    log_rates: Outputs,
    mean: Float[Tensor, "*batch c"],
    std: Float[Tensor, "*batch c"],
    probability: float,
    share_below: ShareBelow,
    *,
    max_bytes: int = BUDGET,
) -> Float[Tensor, "*batch c"]:
    """The smallest count k with ``P(y ≤ k) = E P(y ≤ k | e^f) ≥ probability``.

    Args:
        log_rates: As in ``count_cdf``.
        mean: Mean of the counts.
        std: Their standard deviation.
        probability: Between 0 and 1.
        share_below: P(y ≤ k | e^f).
        max_bytes: What the probabilities of some counts at all points may take.

    Returns:
        Whole numbers, in the dtype of ``mean``.

    Cost:
        ``share_below`` of ``NODES`` rates, or one a draw, for each bisection: the logarithm of the largest count.
    """
    weights = log_rates.node_weights()
    # Cantelli: no quantile lies further above the mean.
    highest = (wide(mean) + wide(std) * math.sqrt(probability / (1 - probability))).flatten()
    found = torch.zeros_like(highest)
    for some in _pieces(highest, len(weights), max_bytes):
        found[some] = _bisected(_rates(log_rates, some), weights, highest[some], probability, share_below)
    return found.view(mean.shape).to(mean)


def _pieces(values: Float[Tensor, " m"], nodes: int, max_bytes: int) -> Iterator[Int[Tensor, " p"]]:
    """Numbers of the values, so many at a time that all nodes of them fit the bytes."""
    yield from torch.arange(len(values), device=values.device).split(max(1, max_bytes // (8 * nodes)))


def _rates(log_rates: Outputs, some: Int[Tensor, " m"]) -> Float[Tensor, "nodes m"]:
    return log_rates.nodes(some).clamp(max=LARGEST_LOG).exp()


def _bisected(
    rates: Float[Tensor, "nodes m"],
    weights: Float[Tensor, " nodes"],
    highest: Float[Tensor, " m"],
    probability: float,
    share_below: ShareBelow,
) -> Float[Tensor, " m"]:
    """The smallest counts of at least this probability, none of which is above ``highest``.

    Beyond 2⁵³, where float64 has not every whole number, the smallest of those that it has.
    """
    below = torch.full_like(highest, -1.0)
    above = highest.clamp(max=torch.finfo(highest.dtype).max).ceil()
    while True:
        middle = (below + (above - below) / 2).floor()
        if not bool(((below < middle) & (middle < above)).any()):
            return above
        enough = weights @ share_below(middle, rates) >= probability
        above = torch.where(enough, middle, above)
        below = torch.where(enough, below, middle)
