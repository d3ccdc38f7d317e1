"""The vertex of a parabola through the best of some points."""

from __future__ import annotations

import math
from collections.abc import Iterable


def vertex(points: Iterable[tuple[float, float]]) -> tuple[float, float] | None:
    """Of the parabola through the lowest of some points (x, y) and its neighbours: where it is lowest, and how low.

    ``None`` where the lowest point is at an end, or the three do not bend upwards. Where a neighbour is not finite, it
    is halfway to the other, or to one of them, and as low as the lowest point.

    Example:
        >>> vertex([(0.0, 4.0), (3.0, 1.0), (1.0, 1.0)])
        (2.0, 0.0)
    """
    path = sorted(points)
    best = min(range(len(path)), key=lambda i: path[i][1])
    if best in (0, len(path) - 1):
        return None
    x0, y0 = path[best - 1]
    x1, y1 = path[best]
    x2, y2 = path[best + 1]
    if not math.isfinite(y0 + y2):
        finite = x0 if math.isfinite(y0) else x2
        return (x1 + finite) / 2, y1
    if not x0 < x1 < x2:
        return None
    down = (y1 - y0) / (x1 - x0)
    up = (y2 - y1) / (x2 - x1)
    curvature = (up - down) / (x2 - x0)
    if curvature <= 0:
        return None
    move = (x0 - x1) / 2 - down / (2 * curvature)
    return x1 + move, y1 - curvature * move**2
