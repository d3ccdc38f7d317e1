"""The temperature of least loss, by a handful of evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from lapwing.tuning.parabola import vertex

TEMPERATURES = (0.01, 1000.0)
"""Temperatures tried."""

NEAR = 0.005
"""Where the search ends: a difference in log T that no loss can tell."""

STEP = 0.4
"""How far from a single point the next one is, in log T."""

EVALUATIONS = 12
"""Most evaluations: four or five are usual."""


def least_temperature(loss: Callable[[float], float], known: Mapping[float, float], start: float) -> float:
    """The T at which a loss is least, to ``NEAR`` in log T: steps downhill that double, then vertices of parabolas.

    Args:
        loss: Of a temperature; with one minimum.
        known: Losses that are known already, by temperature.
        start: The temperature to begin with.
    """
    points = {math.log(temperature): value for temperature, value in known.items()}
    place: float | None = math.log(start)
    for _ in range(EVALUATIONS):
        if place is None:
            break
        if place not in points:
            points[place] = loss(math.exp(place))
        place = next_place(points)
    return math.exp(min(points, key=lambda point: points[point]))


def next_place(points: Mapping[float, float]) -> float | None:
    """Where to look next; ``None`` where the best of some points is as near as can be told, or at an end of the range.

    Example:
        >>> next_place({0.0: 1.0}), next_place({0.0: 3.0, 1.0: 2.0})
        (0.4, 3.0)
    """
    path = sorted(points)
    best = min(path, key=lambda point: points[point])
    low = math.log(TEMPERATURES[0])
    high = math.log(TEMPERATURES[1])
    if len(path) == 1:
        return best + STEP if best < high else best - STEP
    if best == path[-1]:
        return min(high, best + 2 * max(STEP / 2, best - path[-2])) if best < high else None
    if best == path[0]:
        return max(low, best - 2 * max(STEP / 2, path[1] - best)) if best > low else None
    found = vertex(points.items())
    if found is None or min(abs(found[0] - point) for point in path) < NEAR:
        return None
    return found[0]
