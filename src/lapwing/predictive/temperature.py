"""What a temperature of the logits may be: it cools as the data ask, and sharpens against a prior."""

from __future__ import annotations

import math

WIDTH = 0.5
"""Standard deviation of -log T, where T sharpens."""


def sharpening_penalty(temperature: float) -> float:
    """What a temperature costs, in nats beside the log likelihood of all targets by which it is chosen.

        (log T)² / (2 · 0.5²) where T < 1, else nothing

    Logits are divided by T. Above 1 that lowers confidences, and costs nothing: overconfidence is the rule, and data
    bound T by themselves. Below 1 it raises them, and labels that the network has all right ask for T → 0. The penalty
    is the prior that -log T is half-normal there: a fact about networks, not about one example, so it is added to the
    sum over the examples once, and fades as they become many.

    Args:
        temperature: T > 0.

    Example:
        >>> sharpening_penalty(2.0), round(sharpening_penalty(0.5), 3)
        (0.0, 0.961)
    """
    sharpening = max(0.0, -math.log(temperature))
    return sharpening**2 / (2 * WIDTH**2)
