"""A function of one position's moments over many positions, a few at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

MAX_BYTES = 2**28
"""Memory that averaging over outputs may take beside its result (256 MiB)."""

CACHED = 2**22
"""Bytes that stay in a CPU's cache (4 MiB): pieces larger than that take several times as long."""


def by_position(
    function: Callable[[Tensor, Tensor], Tensor],
    mean: Float[Tensor, "*batch c"],
    covariance: Float[Tensor, "*batch c c"],
    each: int,
    max_bytes: int = MAX_BYTES,
) -> Float[Tensor, "*batch c"]:
    """Values ``[n, *event, c]`` of a function of means ``[p, c]`` and covariances ``[p, c, c]``.

    Args:
        function: What to compute.
        mean: Means of all positions.
        covariance: Their covariances.
        each: Bytes that one position takes inside the function.
        max_bytes: Memory for the positions of one call.
    """
    room = min(max_bytes, CACHED) if mean.device.type == "cpu" else max_bytes
    c, step = mean.shape[-1], max(1, room // each)
    pieces = zip(mean.reshape(-1, c).split(step), covariance.reshape(-1, c, c).split(step), strict=True)
    return torch.cat([function(*piece) for piece in pieces]).view(mean.shape).to(mean.dtype)
