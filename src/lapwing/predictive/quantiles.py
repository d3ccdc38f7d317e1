"""Quantiles of counts whose rate is uncertain: of a mixture of Poisson distributions."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.predictive.outputs import Draws
from lapwing.predictive.wide import Outputs

REACH = 6.0
"""Standard deviations of the log rate, to each side of its mean, over which it is integrated."""

NODES = 385
"""Points of the trapezoid rule there: even beside a step, quantiles are right to 1/64 of a standard deviation of f."""

LARGEST_LOG = 700.0
"""Log rates beyond are cut, short of where exp overflows."""

BUDGET = 2**27
"""Bytes the probabilities of some counts at all points may take (128 MiB)."""


def count_quantile(
    log_rates: Outputs,
    mean: Float[Tensor, "*batch c"],
    std: Float[Tensor, "*batch c"],
    probability: float,
    *,
    max_bytes: int = BUDGET,
) -> Float[Tensor, "*batch c"]:
    """The smallest count k with ``P(y ≤ k) = E Q(k + 1, e^f) ≥ probability``.

    Q is the regularised upper incomplete gamma function.

    Args:
        log_rates: What is known of f: Gaussian, which the trapezoid rule integrates over, or draws.
        mean: Mean of the counts.
        std: Their standard deviation.
        probability: Between 0 and 1.
        max_bytes: What the probabilities of some counts at all points may take.

    Returns:
        Whole numbers, in the dtype of ``mean``.

    Cost:
        ``NODES`` incomplete gamma functions, or one a draw, for each bisection: the logarithm of the largest count.
    """
    drawn = log_rates.values.double().flatten(1) if isinstance(log_rates, Draws) else None
    z = torch.linspace(-REACH, REACH, NODES, dtype=torch.float64, device=mean.device)
    weights = torch.softmax(-0.5 * z.square(), 0) if drawn is None else drawn.new_full((len(drawn),), 1 / len(drawn))
    centre = log_rates.mean.double().flatten()
    spread = log_rates.variance.double().sqrt().flatten()
    # Cantelli: no quantile lies further above the mean.
    highest = (mean.double() + std.double() * math.sqrt(probability / (1 - probability))).flatten()
    found: list[Tensor] = []
    for some in torch.arange(len(highest), device=mean.device).split(max(1, max_bytes // (8 * len(weights)))):
        nodes = centre[some] + z[:, None] * spread[some] if drawn is None else drawn[:, some]
        rates = nodes.clamp(max=LARGEST_LOG).exp()
        found.append(_bisected(rates, weights, highest[some], probability))
    return torch.cat(found).view(mean.shape).to(mean)


def _bisected(
    rates: Float[Tensor, "nodes m"], weights: Float[Tensor, " nodes"], highest: Float[Tensor, " m"], probability: float
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
        enough = weights @ torch.special.gammaincc(middle + 1, rates) >= probability
        above = torch.where(enough, middle, above)
        below = torch.where(enough, below, middle)
