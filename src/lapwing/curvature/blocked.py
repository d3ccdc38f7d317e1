"""A curvature in a structure, and the parameters of its blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from lapwing.linalg import Structured


@final
@dataclass(frozen=True, eq=False)
class BlockedCurvature:
    """Curvature in a structure.

    Args:
        operator: The matrix, on the flat vector of uncertain weights.
        partition: Parameters of each block, where the operator is a ``BlockDiagonal``; empty otherwise.
    """

    operator: Structured
    partition: tuple[tuple[str, ...], ...] = ()
