"""Which prior variances of several choices are multiples of one another, so that they share their work."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor


def distinct(variances: list[Float[Tensor, " d"]]) -> tuple[tuple[Float[Tensor, " d"], ...], list[tuple[int, float]]]:
    """Those that are not multiples of one another; for each variance, which of them it is and how many times it.

    Example:
        >>> import torch
        >>> distinct([torch.ones(2), 3 * torch.ones(2)])[1]
        [(0, 1.0), (0, 3.0)]
    """
    found: list[Tensor] = []
    places: list[tuple[int, float]] = []
    for variance in variances:
        ratios = [variance / known for known in found]
        same = [i for i, ratio in enumerate(ratios) if bool(ratio.max() <= (1 + 1e-12) * ratio.min())]
        if same:
            places.append((same[0], float(ratios[same[0]][0])))
        else:
            places.append((len(found), 1.0))
            found.append(variance)
    return tuple(found), places
