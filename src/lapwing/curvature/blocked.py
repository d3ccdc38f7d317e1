"""A curvature in a structure, and the parameters of its blocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from lapwing.curvature.quadratic_forms import QuadraticForms
from lapwing.ground.files.records import UNRECORDED
from lapwing.ground.shared import Shared
from lapwing.linalg import Structured


@final
@dataclass(frozen=True, eq=False)
class BlockedCurvature:
    """Curvature in a structure.

    Args:
        operator: The matrix, on the flat vector of uncertain weights.
        partition: Parameters of each block, where the operator is a ``BlockDiagonal``; empty otherwise.
        shared_forms: What the inverse of a dense precision makes of a head's inputs, once it was asked for.
    """

    operator: Structured
    partition: tuple[tuple[str, ...], ...] = ()
    shared_forms: Shared[QuadraticForms | None] = field(
        default_factory=Shared[QuadraticForms | None], kw_only=True, metadata=UNRECORDED
    )
